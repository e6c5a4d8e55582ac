package phantom

import (
	"testing"
)

var testConfig = Config{Seed: 1, Train: 100, Validation: 100, Test: 100, OOD: 100}

func BenchmarkGenerate(b *testing.B) {
	for i := range b.N {
		Generate(testConfig, i%100)
	}
}

func BenchmarkEncodePNG(b *testing.B) {
	s := Generate(testConfig, 0)
	for range b.N {
		if data, _ := s.EncodePNG(); b.N == 1 {
			b.ReportMetric(float64(len(data)), "bytes")
		}
	}
}

func BenchmarkDescribe(b *testing.B) {
	for i := range b.N {
		Describe(testConfig, i%100)
	}
}
