package queue

func workerProcess(url, name string) {}
