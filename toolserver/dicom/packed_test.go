package dicom

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var remake = flag.Bool("remake", false, "make testdata again with dcmtk")

// A recipe is how dcmtk makes one file of testdata from a plain one.
type recipe struct {
	name string
	tool []string
	film string
	most int32 // greatest difference from the plain film
}

var recipes = []recipe{
	{"lossless1", []string{"dcmcjpeg", "+e1"}, "film12", 0},
	{"lossless_sv2", []string{"dcmcjpeg", "+el", "+sv", "2"}, "film12", 0},
	{"lossless_sv3", []string{"dcmcjpeg", "+el", "+sv", "3"}, "film12", 0},
	{"lossless_sv4", []string{"dcmcjpeg", "+el", "+sv", "4"}, "film12", 0},
	{"lossless_sv5", []string{"dcmcjpeg", "+el", "+sv", "5"}, "film12", 0},
	{"lossless_sv6", []string{"dcmcjpeg", "+el", "+sv", "6"}, "film12", 0},
	{"lossless_sv7", []string{"dcmcjpeg", "+el", "+sv", "7"}, "film12", 0},
	{"lossless_16", []string{"dcmcjpeg", "+e1"}, "film16", 0},
	{"lossless_8", []string{"dcmcjpeg", "+e1"}, "film8", 0},
	{"baseline", []string{"dcmcjpeg", "+eb", "+q", "98"}, "film8", 12},
	{"extended_12", []string{"dcmcjpeg", "+ee", "+q", "98"}, "film12", 200},
	{"rle", []string{"dcmcrle"}, "film12", 0},
	{"rle_8", []string{"dcmcrle"}, "film8", 0},
	{"big_endian", []string{"dcmconv", "+tb"}, "film12", 0},
	{"big_endian_8", []string{"dcmconv", "+tb"}, "film8", 0},
	{"deflated", []string{"dcmconv", "+td"}, "film12", 0},
	{"implicit", []string{"dcmconv", "+ti"}, "film12", 0},
	{"jpegls", []string{"dcmcjpls"}, "film12", 0},
	{"jpegls_8", []string{"dcmcjpls"}, "film8", 0},
}

// plainFilms are ramps with an edge and noise, of 37 x 23 pixels, so that blocks and
// lines do not end together.
func plainFilms() map[string][]byte {
	const w, h = 37, 23
	films := map[string][]byte{}
	for name, bits := range map[string]int{"film8": 8, "film12": 12, "film16": 16} {
		var values []int
		var octets []byte
		for i := range w * h {
			v := (i%w*40+i/w*60)<<4 + i*i*7919%500
			if i%w > 20 && i/w < 9 {
				v = 65000 - v/2
			}
			values = append(values, v>>(16-bits))
			octets = append(octets, byte(v>>8))
		}
		fields := []field{{0x0008_0018, "UI", "1.2.3"}, {tagRows, "US", []int{h}}, {tagColumns, "US", []int{w}}, {tagStored, "US", []int{bits}},
			{tagHighBit, "US", []int{bits - 1}}, {tagPixels, "OW", values}}
		if bits == 8 {
			fields = append(fields, field{tagAllocated, "US", []int{8}}, field{tagPixels, "OB", octets})
		}
		films[name] = file(fields...)
	}
	return films
}

// packedFilms reads testdata.
func packedFilms(t testing.TB) map[string][]byte {
	t.Helper()
	films := map[string][]byte{}
	for _, r := range recipes {
		data, err := os.ReadFile(filepath.Join("testdata", r.name+".dcm"))
		if err != nil {
			t.Fatal(err)
		}
		films[r.name] = data
	}
	return films
}

// TestPacked holds what another implementation packed against the plain film.
// With -remake it makes testdata first.
func TestPacked(t *testing.T) {
	plain := plainFilms()
	if *remake {
		makeTestdata(t, plain)
	}
	films := packedFilms(t)
	for _, r := range recipes {
		want := mustDecode(t, plain[r.film]).Stored()
		m, err := Decode(films[r.name], DefaultLimits)
		if ReasonOf(err) == Unsupported && strings.HasPrefix(r.name, "jpegls") {
			continue // not in this build
		}
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		worst := int32(0)
		for i, v := range m.Stored() {
			worst = max(worst, v-want[i], want[i]-v)
		}
		if worst > r.most {
			t.Errorf("%s: a pixel differs by %d, want at most %d", r.name, worst, r.most)
		}
	}
}

func makeTestdata(t *testing.T, plain map[string][]byte) {
	t.Helper()
	for _, r := range recipes {
		from, to := filepath.Join(t.TempDir(), "plain.dcm"), filepath.Join("testdata", r.name+".dcm")
		if err := os.WriteFile(from, plain[r.film], 0o600); err != nil {
			t.Fatal(err)
		}
		args := append(r.tool[1:], from, to)
		if out, err := exec.Command(r.tool[0], args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", r.tool, err, out)
		}
	}
}

// TestPackedAgainstDCMTK compares the lossy frames with dcmtk's own decoder.
func TestPackedAgainstDCMTK(t *testing.T) {
	if _, err := exec.LookPath("dcmdjpeg"); err != nil {
		t.Skipf("not checked: lossy frames against dcmtk: %v", err)
	}
	films := packedFilms(t)
	for _, name := range []string{"baseline", "extended_12"} {
		from, to := filepath.Join("testdata", name+".dcm"), filepath.Join(t.TempDir(), "plain.dcm")
		if out, err := exec.Command("dcmdjpeg", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		data, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		got, want := mustDecode(t, films[name]).Stored(), mustDecode(t, data).Stored()
		for i := range got {
			if d := got[i] - want[i]; d < -1 || d > 1 {
				t.Fatalf("%s: pixel %d is %d, dcmtk's %d", name, i, got[i], want[i])
			}
		}
	}
}

// TestCutScans holds that a code stream cut anywhere is refused or, in its last
// bytes, decodes to the same pixels; and that damage never panics.
func TestCutScans(t *testing.T) {
	for name, film := range packedFilms(t) {
		if !strings.HasPrefix(name, "lossless") && name != "extended_12" {
			continue
		}
		h, err := readHeader(film, DefaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		f, err := h.frame(DefaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := f.decodeJPEG()
		if err != nil {
			t.Fatal(err)
		}
		scan := bytes.TrimRight(f.data, "\x00")
		for n := 0; n < len(scan); n += 1 + len(scan)/60 {
			f.data = scan[:n]
			if _, err := f.decodeJPEG(); err == nil && n < len(scan)-4 {
				t.Fatalf("%s: %d of %d bytes decode to %d pixels", name, n, len(scan), len(whole.values))
			}
		}
	}
}
