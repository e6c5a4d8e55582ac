package queue

import "xragent/internal/bus"

// WorkerSubjects lists what a server must permit a worker of that name to
// publish and to subscribe to, and nothing besides. Creating consumers is not
// among it: whoever may do that can make the server publish anywhere. The
// worker's connection must have the worker's name, see [bus.Dial].
func WorkerSubjects(run, worker string) (publish, subscribe []string) {
	publish = []string{
		resultSubjects(run),
		proofSubject(run),
		"$KV." + leaseBucket(run) + "." + worker,
		"$JS.API.CONSUMER.INFO." + tasksStream + ".*",
		"$JS.API.CONSUMER.MSG.NEXT." + tasksStream + ".*",
		"$JS.ACK." + tasksStream + ".>",
		"$JS.API.STREAM.INFO.KV_" + leaseBucket(run),
	}
	for _, bucket := range []string{policyBucket(run), runsBucket} {
		publish = append(publish, "$JS.API.STREAM.INFO.KV_"+bucket, "$JS.API.DIRECT.GET.KV_"+bucket+".>")
	}
	return publish, []string{announceSubject(run), bus.Inbox(worker) + ".>"}
}
