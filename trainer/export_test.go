package trainer

import "xragent/rollout"

// What the tests over the real queue share with those over the fake one.
var (
	ErrKilled        = errKilled
	SampleTrajectory = sampleTrajectory
	FakeScore        = fakeScore
	FakeSamples      = fakeSamples
	TestConfig       = testConfig
)

// FakeLearner and FakeBlobs are the fakes of the tests inside the package.
type (
	FakeLearner = fakeLearner
	FakeBlobs   = fakeBlobs
)

// FakeLimits admit any id, since the fake samples any.
var FakeLimits = rollout.Limits{Vocab: 100, ImagePad: -1, Merge: 2}

// KillAt makes the boundary crossed after n others fail.
func (d *GRPODeps) KillAt(n int) {
	d.at = func(string) error {
		if n--; n < 0 {
			return errKilled
		}
		return nil
	}
}
