package embedded

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What the cache gives back is what was put in, bit for bit.
func TestPackedPicturesKeepEveryValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		grid := [3]int{1, rapid.IntRange(1, 4).Draw(t, "high"), rapid.IntRange(1, 4).Draw(t, "wide")}
		plane := rapid.IntRange(1, 5).Draw(t, "plane")
		levels := rapid.SampledFrom([]int{1, 3, 256, 2000}).Draw(t, "levels")
		grey := rapid.Bool().Draw(t, "grey")
		p := picture{grid: grid}
		for range grid[1] * grid[2] {
			first := len(p.patches)
			for k := range 6 * plane {
				v := float32(rapid.IntRange(0, levels).Draw(t, "v")) / 7
				if grey && k >= plane {
					v = p.patches[first+k-plane]
				}
				p.patches = append(p.patches, v)
			}
		}
		got := pack(p).unpack()
		if got.grid != p.grid || !slices.Equal(got.patches, p.patches) {
			t.Fatalf("got %v %v, want %v %v", got.grid, got.patches, p.grid, p.patches)
		}
	})
}

// A grey film takes a byte a pixel.
func TestGreyPicturesPackSmall(t *testing.T) {
	p := picture{grid: [3]int{1, 8, 8}}
	for i := range 64 {
		for range 6 {
			for k := range 256 {
				p.patches = append(p.patches, float32((i*31+k*7)%256)/127.5-1)
			}
		}
	}
	if n := pack(p).bytes(); n > 64*256+1024 {
		t.Errorf("%d bytes, want about %d", n, 64*256)
	}
}
