package dataset

import "fmt"

// A Leak is something that two sets of samples share and must not.
type Leak struct {
	What string // "image" or "patient"
	Key  string // the hash or the patient's id
	A, B string // ids of a sample of either set
}

func (l Leak) String() string {
	if l.What == "image" {
		return fmt.Sprintf("samples %s and %s share image %.12s", l.A, l.B, l.Key)
	}
	return fmt.Sprintf("samples %s and %s share a %s", l.A, l.B, l.What)
}

// Leaks lists images and patients that occur in both train and eval, each
// once, in the order of eval. Empty patients are unknown, never the same.
func Leaks(train, eval []Sample) []Leak {
	type key struct{ what, key string }
	owner := map[key]string{}
	each := func(s Sample, f func(key)) {
		for _, img := range s.Prompt.Images {
			f(key{"image", img.SHA256})
		}
		f(key{"patient", s.Patient})
	}
	for _, s := range train {
		each(s, func(k key) {
			if _, ok := owner[k]; !ok {
				owner[k] = s.ID
			}
		})
	}
	var leaks []Leak
	for _, s := range eval {
		each(s, func(k key) {
			if id, ok := owner[k]; ok && k.key != "" {
				leaks = append(leaks, Leak{k.what, k.key, id, s.ID})
				delete(owner, k)
			}
		})
	}
	return leaks
}

// BySplit returns the samples of one split in their order.
func BySplit(samples []Sample, split Split) []Sample {
	var out []Sample
	for _, s := range samples {
		if s.Split == split {
			out = append(out, s)
		}
	}
	return out
}
