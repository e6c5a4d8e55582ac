package bustest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// endsWithin is how long goroutines may take to end after the last test. What
// leaks is still there; what only waits for a processor is gone long before.
const endsWithin = 30 * time.Second

// Main runs a package's tests and fails when they leave goroutines behind. It
// waits longer than goleak does by itself: on a loaded machine the goroutines
// of a stopped server and of closed connections take their time.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := leaked(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines left behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

func leaked() (err error) {
	for deadline := time.Now().Add(endsWithin); time.Now().Before(deadline); {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}
