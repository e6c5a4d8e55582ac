package dicom

import (
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"image"
	_ "image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const samples = "../../../shared/data/dicom"

// sampleFiles returns the public sample files with their rows of dicom.csv, by
// column name.
func sampleFiles(t *testing.T) map[string]map[string]string {
	t.Helper()
	f, err := os.Open(filepath.Join(samples, "dicom.csv"))
	if err != nil {
		t.Skipf("not checked: DICOM files of ../shared/data/dicom: %v", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]map[string]string{}
	for _, r := range rows[1:] {
		files[r[0]] = map[string]string{}
		for i, name := range rows[0] {
			files[r[0]][name] = r[i]
		}
	}
	return files
}

// A sample is a file of the samples with what Decode made of it.
type sample struct {
	data []byte
	m    *Image
	err  error
}

// readSample decodes each file once: they are large.
var readSample = func() func(t *testing.T, name string) sample {
	known := map[string]sample{}
	return func(t *testing.T, name string) sample {
		t.Helper()
		if s, ok := known[name]; ok {
			return s
		}
		data, err := os.ReadFile(filepath.Join(samples, name))
		if err != nil {
			t.Fatal(err)
		}
		m, err := Decode(data, DefaultLimits)
		known[name] = sample{data, m, err}
		return known[name]
	}
}()

// refusals are the samples that are no radiographs with pixels.
var refusals = map[string]string{
	"CT-MONO2-16-chest_not_a_radiograph.dcm": NotRadiograph,
	"chrJapMulti_charset_no_pixeldata.dcm":   NoPixels,
}

func TestSamples(t *testing.T) {
	for name, row := range sampleFiles(t) {
		s := readSample(t, name)
		if !Is(s.data) {
			t.Errorf("%s: not taken for DICOM", name)
		}
		m, err := s.m, s.err
		want := refusals[name]
		if missingCodec(row["transfer_syntax"]) {
			want = Unsupported
		}
		if got := ReasonOf(err); got != want || (err != nil) != (want != "") {
			t.Errorf("%s: reason %q (%v), want %q", name, got, err, want)
		}
		if err == nil {
			checkSample(t, name, m, row)
		}
	}
}

// TestSamplesNameNobody holds that no value of the patient's group, of a
// private group or of the names and places in group 8 is in what is returned.
func TestSamplesNameNobody(t *testing.T) {
	for name := range sampleFiles(t) {
		s := readSample(t, name)
		said := fmt.Sprint(s.err)
		if s.m != nil {
			m := *s.m
			m.Gray, m.stored = nil, stored{}
			said = fmt.Sprintf("%+v", m)
		}
		for _, secret := range secrets(t, s.data) {
			if strings.Contains(said, secret) {
				t.Errorf("%s: a value that identifies is in %q", name, said)
			}
		}
	}
}

// secrets are the texts of elements that identify.
func secrets(t *testing.T, file []byte) []string {
	t.Helper()
	data, s, err := open(file, DefaultLimits.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	r := &reader{data: data, syntax: s}
	for r.left() > 0 {
		e, err := r.element()
		if err != nil || e.tag == tagPixels {
			break
		}
		group := e.tag >> 16
		identifies := group == 0x10 && e.tag != tagAge || group%2 == 1 || e.tag == 0x0008_0080 || e.tag == 0x0008_0090 || e.tag == 0x0008_0050
		if text := trimText(e.value); identifies && len(text) >= 3 && len(text) < 200 {
			list = append(list, text)
		}
	}
	return list
}

// missingCodec reports syntaxes that this build does not read.
func missingCodec(uid string) bool {
	s, err := syntaxByUID(uid)
	if err != nil {
		return false
	}
	_, noJ2K := decodeJPEG2000(nil, nil)
	_, noJLS := decodeJPEGLS(nil, nil)
	return s.coding == jpeg2000 && ReasonOf(noJ2K) == Unsupported || s.coding == jpegLS && ReasonOf(noJLS) == Unsupported
}

func checkSample(t *testing.T, name string, m *Image, row map[string]string) {
	t.Helper()
	want := fmt.Sprintf("%s %s %s %s %s x %s, %s bits", row["modality"], row["body_part"], row["view"], row["photometric"], row["cols"], row["rows"], row["bits_stored"])
	got := fmt.Sprintf("%s %s %s %s %d x %d, %d bits", m.Modality, m.BodyPart, m.View, m.Photometric, m.Gray.Rect.Dx(), m.Gray.Rect.Dy(), m.Bits)
	if got != want {
		t.Errorf("%s: read %q, want %q", name, got, want)
	}
}

// TestAgainstDCMTK compares stored and displayed pixels with dcmtk's.
func TestAgainstDCMTK(t *testing.T) {
	files := sampleFiles(t)
	if _, err := exec.LookPath("dcm2pnm"); err != nil {
		t.Skipf("not checked: pixels against dcmtk: %v", err)
	}
	for name, row := range files {
		if refusals[name] != "" || missingCodec(row["transfer_syntax"]) {
			continue
		}
		m, err := readSample(t, name).m, readSample(t, name).err
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s, _ := syntaxByUID(row["transfer_syntax"])
		if s.coding == jpeg2000 {
			continue // dcmtk has none; TestSameImage compares
		}
		if plain := decompress(t, name, s); plain != "" {
			compareStored(t, name, plain, m, s)
			compareShown(t, name, plain, m)
		}
	}
}

// decompress has dcmtk write an uncompressed copy, and returns its path.
func decompress(t *testing.T, name string, s syntax) string {
	t.Helper()
	plain := filepath.Join(t.TempDir(), "plain.dcm")
	tool := map[coding]string{rle: "dcmdrle", jpegLS: "dcmdjpls", jpegDCT: "dcmdjpeg", jpegLossless: "dcmdjpeg", native: "dcmconv"}[s.coding]
	if out, err := exec.Command(tool, filepath.Join(samples, name), plain).CombinedOutput(); err != nil {
		t.Logf("%s: not checked: %s: %s", name, tool, out)
		return ""
	}
	return plain
}

// compareStored holds the stored values against those of dcmtk's copy.
func compareStored(t *testing.T, name, plain string, m *Image, s syntax) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("dcmdump", "+W", dir, plain).CombinedOutput(); err != nil {
		t.Fatalf("%s: dcmdump: %v: %s", name, err, out)
	}
	raws, err := filepath.Glob(filepath.Join(dir, "*.raw"))
	if err != nil || len(raws) == 0 {
		t.Fatalf("%s: dcmdump wrote no pixels: %v", name, err)
	}
	raw, err := os.ReadFile(raws[len(raws)-1])
	if err != nil {
		t.Fatal(err)
	}
	tolerance := int32(0)
	if strings.Contains(s.name, "baseline") || strings.Contains(s.name, "extended") {
		tolerance = 1
	}
	cells := len(raw) / len(m.Stored())
	worst := int32(0)
	for i, got := range m.Stored() {
		want := int32(raw[i])
		if cells == 2 {
			want = int32(binary.LittleEndian.Uint16(raw[2*i:])) & (1<<m.Bits - 1)
		}
		worst = max(worst, got-want, want-got)
	}
	t.Logf("%s: stored values differ from dcmtk's by at most %d", name, worst)
	if worst > tolerance {
		t.Errorf("%s: a stored value differs by %d from dcmtk's, want at most %d", name, worst, tolerance)
	}
}

// compareShown holds the grey values against dcm2pnm's, which truncates where
// we round.
func compareShown(t *testing.T, name, plain string, m *Image) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.pgm")
	window := map[string]string{"window": "+Wi", "voi_lut": "+Wl", "range": "+Wn"}[m.Shown]
	args := []string{"--write-raw-pnm", plain, out}
	switch window {
	case "+Wi", "+Wl":
		args = append([]string{window, "1"}, args...)
	case "+Wn":
		args = append([]string{"+Wm"}, args...)
	}
	if text, err := exec.Command("dcm2pnm", args...).CombinedOutput(); err != nil {
		t.Logf("%s: not checked: dcm2pnm: %s", name, text)
		return
	}
	want, err := readPGM(out)
	if err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	for i, v := range m.Gray.Pix {
		worst = max(worst, math.Abs(float64(v)-float64(want.Pix[i])))
	}
	t.Logf("%s: shown by %s, differs from dcm2pnm's by at most %.0f", name, m.Shown, worst)
	if worst > 1 {
		t.Errorf("%s: shown by %s: a grey value differs by %.0f from dcm2pnm's, want at most 1", name, m.Shown, worst)
	}
}

// TestSameImage holds the lossless copies of one radiograph against each other.
func TestSameImage(t *testing.T) {
	files := sampleFiles(t)
	var first *Image
	for _, name := range []string{"RG3_RLE.dcm", "RG3_JPLL.dcm", "RG3_J2KR.dcm"} {
		if files[name] == nil {
			t.Logf("not checked: %s is not among the samples", name)
			continue
		}
		if missingCodec(files[name]["transfer_syntax"]) {
			t.Logf("not checked: %s: this build does not read it", name)
			continue
		}
		m, err := readSample(t, name).m, readSample(t, name).err
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = m
		}
		if !slices.Equal(m.Stored(), first.Stored()) {
			t.Errorf("%s: pixels differ from the first copy's", name)
		}
	}
}

// readPGM reads a binary PGM of 8 bits.
func readPGM(path string) (*image.Gray, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var fields []string
	for len(fields) < 4 {
		i := slices.IndexFunc(data, func(r byte) bool { return r == ' ' || r == '\n' })
		if i < 0 {
			return nil, fmt.Errorf("%s: no PGM", path)
		}
		if data[0] == '#' {
			i = slices.Index(data, '\n')
		} else {
			fields = append(fields, string(data[:i]))
		}
		data = data[i+1:]
	}
	w, _ := strconv.Atoi(fields[1])
	h, _ := strconv.Atoi(fields[2])
	if fields[0] != "P5" || fields[3] != "255" || len(data) != w*h {
		return nil, fmt.Errorf("%s: PGM %v with %d bytes", path, fields, len(data))
	}
	return &image.Gray{Pix: data, Stride: w, Rect: image.Rect(0, 0, w, h)}, nil
}
