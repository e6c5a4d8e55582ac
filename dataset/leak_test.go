package dataset

import (
	"slices"
	"testing"
)

func sample(id, patient string, hashes ...string) Sample {
	s := Sample{ID: id, Patient: patient}
	for _, h := range hashes {
		s.Prompt.Images = append(s.Prompt.Images, Image{SHA256: h})
	}
	return s
}

func TestLeaks(t *testing.T) {
	train := []Sample{sample("a", "p1", "h1"), sample("b", "", "h2"), sample("c", "p1", "h1", "h3")}
	for _, c := range []struct {
		name string
		eval []Sample
		want []Leak
	}{
		{"none", []Sample{sample("x", "p2", "h9"), sample("y", "", "")}, nil},
		{"image", []Sample{sample("x", "p2", "h3")}, []Leak{{"image", "h3", "c", "x"}}},
		{"patient", []Sample{sample("x", "p1", "h9")}, []Leak{{"patient", "p1", "a", "x"}}},
		{"once", []Sample{sample("x", "", "h2"), sample("y", "", "h2")}, []Leak{{"image", "h2", "b", "x"}}},
	} {
		if got := Leaks(train, c.eval); !slices.Equal(got, c.want) {
			t.Errorf("%s: leaks %v, want %v", c.name, got, c.want)
		}
	}
}

func TestLeakDoesNotNameThePatient(t *testing.T) {
	if got := (Leak{"patient", "Jane Roe", "a", "b"}).String(); got != "samples a and b share a patient" {
		t.Errorf("leak reads %q", got)
	}
}
