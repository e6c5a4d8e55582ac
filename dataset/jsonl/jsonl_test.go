package jsonl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"xragent/dataset"
	"xragent/dataset/phantom"
)

var phantoms = phantom.Config{Seed: 3, Train: 5, Validation: 1, Test: 2, OOD: 1}

func TestPhantomsRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub", "set")
	last, calls := 0, 0
	m, err := WritePhantoms(context.Background(), dir, phantoms, func(done, total int) {
		if done <= last || total != phantoms.Studies() {
			t.Errorf("progress %d after %d of %d", done, last, total)
		}
		last, calls = done, calls+1
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != phantoms.Studies() || calls == 0 {
		t.Errorf("progress ended at %d after %d calls", last, calls)
	}
	set, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, set.Manifest); d != "" {
		t.Errorf("manifest differs:\n%s", d)
	}
	if m.Counts["train"] < phantoms.Train || m.Counts["test"] != phantoms.Test {
		t.Errorf("counts %v", m.Counts)
	}
	checkPhantoms(t, dir, set)
}

func checkPhantoms(t *testing.T, dir string, set *Set) {
	t.Helper()
	var want []dataset.Sample
	for i := range phantoms.Studies() {
		s := phantom.Generate(phantoms, i)
		data, err := s.EncodePNG()
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, s.Samples...)
		got, err := set.Image(s.Samples[0].Prompt.Images[0].SHA256)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("image of %s: %d bytes, %v", s.ID, len(got), err)
		}
		truth, err := PhantomTruth(dir, s.ID)
		if err != nil || truth.Apparent != s.Truth.Apparent || truth.View != s.Truth.View {
			t.Errorf("truth of %s: %+v, %v", s.ID, truth, err)
		}
	}
	if d := cmp.Diff(want, set.Samples); d != "" {
		t.Errorf("samples differ:\n%s", d)
	}
}

func TestWriteDoesNotDependOnScheduling(t *testing.T) {
	dir := t.TempDir()
	a, err := WritePhantoms(context.Background(), filepath.Join(dir, "a"), phantoms, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	b, err := WritePhantoms(context.Background(), filepath.Join(dir, "b"), phantoms, nil)
	if err != nil || a.SHA256 != b.SHA256 {
		t.Errorf("two writings of one set: %s, %s, %v", a.SHA256, b.SHA256, err)
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "set")
	broken := errors.New("broken study")
	_, err := Write(context.Background(), dir, dataset.Manifest{}, 40, func(i int) (Study, error) {
		if i == 30 {
			return Study{}, broken
		}
		return Study{ID: fmt.Sprint(i)}, nil
	}, nil)
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want it to wrap %v", err, broken)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := WritePhantoms(ctx, dir, phantoms, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled write: %v", err)
	}
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWriteKeepsWhatExists(t *testing.T) {
	dir := t.TempDir()
	if _, err := WritePhantoms(context.Background(), dir, phantoms, nil); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("writing over a directory: %v", err)
	}
}

// row returns a usable row of a user's file, changed by the pairs of old and new text.
func row(change ...string) string {
	return strings.NewReplacer(change...).Replace(
		`{"id":"1","split":"train","study":"s","prompt":{"kind":"binary","question":"Effusion?","images":[{"path":"a.png"}]},"answer":"yes"}`)
}

// userSet writes a user's directory: an image a.png, a JPEG b.jpg, and the rows.
func userSet(t *testing.T, rows ...string) string {
	t.Helper()
	dir := t.TempDir()
	img := image.NewGray(image.Rect(0, 0, 30, 20))
	for i := range img.Pix {
		img.Pix[i] = byte(i * i)
	}
	var p, j bytes.Buffer
	var strip bytes.Buffer
	if err := errors.Join(png.Encode(&p, img), jpeg.Encode(&j, img, nil), os.Mkdir(filepath.Join(dir, "films"), 0o700),
		png.Encode(&strip, image.NewGray(image.Rect(0, 0, 201, 1)))); err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("turned.jpg", append([]byte("\xff\xd8\xff\xe1\x00\x22Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"), j.Bytes()[2:]...))
	write("a.png", p.Bytes())
	write("b.jpg", j.Bytes())
	write("strip.png", strip.Bytes())
	write("cut.png", p.Bytes()[:p.Len()*2/3])
	write("text.png", []byte("not an image"))
	write(samplesFile, []byte(strings.Join(rows, "\n")+"\n"))
	return dir
}

func TestReadUsersOwnData(t *testing.T) {
	dir := userSet(t, row(), row(`"id":"1"`, `"id":"2"`, "a.png", "b.jpg"))
	set, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range set.Samples {
		img := s.Prompt.Images[0]
		if len(img.SHA256) != 64 || img.Width != 30 || img.Height != 20 || s.Source != "jsonl" {
			t.Errorf("row %d: %+v from %s", i+1, img, s.Source)
		}
		if data, err := set.Image(img.SHA256); err != nil || digest(data) != img.SHA256 {
			t.Errorf("row %d: image: %v", i+1, err)
		}
	}
	if set.Manifest.Counts["train"] != 2 || set.Manifest.SHA256 == "" {
		t.Errorf("manifest %+v", set.Manifest)
	}
	if _, err := set.Image("unknown"); err == nil {
		t.Error("an unknown hash gives no error")
	}
}

// TestReadDICOM holds that a DICOM film is served as a PNG, with what the row
// leaves open filled in from the file.
func TestReadDICOM(t *testing.T) {
	film, err := os.ReadFile(filepath.Join("..", "..", "toolserver", "dicom", "testdata", "lossless1.dcm"))
	if err != nil {
		t.Fatal(err)
	}
	dir := userSet(t, row("a.png", "f.dcm"), row(`"id":"1"`, `"id":"2"`, `"path":"a.png"`, `"path":"f.dcm","view":"AP","view_from":"label","sha256":"`+digest(film)+`"`))
	if err := os.WriteFile(filepath.Join(dir, "f.dcm"), film, 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, b := set.Samples[0].Prompt.Images[0], set.Samples[1].Prompt.Images[0]
	if a.Width != 37 || a.Height != 23 || a.Domain != "radiograph" || !a.SquarePx || a.SHA256 != b.SHA256 || a.SHA256 == digest(film) || b.View != "AP" {
		t.Errorf("images %+v and %+v", a, b)
	}
	data, err := set.Image(a.SHA256)
	if err != nil || digest(data) != a.SHA256 {
		t.Fatalf("image: %v", err)
	}
	if cfg, format, err := image.DecodeConfig(bytes.NewReader(data)); err != nil || format != "png" || cfg.Width != 37 {
		t.Errorf("served %s of %d columns, %v", format, cfg.Width, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f.dcm"), film[:len(film)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "f.dcm") || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("cut film: %v", err)
	}
}

// TestReadDeepGrey holds that a film of 12 bits in 16 is served as it is
// displayed, in 8: an engine would show the file as it is white.
func TestReadDeepGrey(t *testing.T) {
	deep := image.NewGray16(image.Rect(0, 0, 30, 20))
	deep.SetGray16(0, 0, color.Gray16{Y: 4095})
	deep.SetGray16(1, 0, color.Gray16{Y: 2048})
	var file bytes.Buffer
	if err := png.Encode(&file, deep); err != nil {
		t.Fatal(err)
	}
	dir := userSet(t, row("a.png", "deep.png"))
	if err := os.WriteFile(filepath.Join(dir, "deep.png"), file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	about := set.Samples[0].Prompt.Images[0]
	data, err := set.Image(about.SHA256)
	if err != nil || about.Width != 30 || about.Height != 20 {
		t.Fatalf("%+v: %v", about, err)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if grey, ok := img.(*image.Gray); !ok || !bytes.Equal(grey.Pix[:3], []byte{255, 128, 0}) {
		t.Errorf("served %T, want 8-bit grey of 255, 128, 0", img)
	}
	if err := os.WriteFile(filepath.Join(dir, "deep.png"), file.Bytes()[:file.Len()-20], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "deep.png: damaged or truncated") {
		t.Errorf("cut film: %v", err)
	}
}

func TestReadNamesWhatIsWrong(t *testing.T) {
	choice := []string{`"binary"`, `"multiple_choice"`, `"images"`, `"options":["x","y"],"images"`}
	for _, c := range []struct {
		name string
		rows []string
		want []string
	}{
		{"unknown field", []string{row(`"answer"`, `"anwser"`)}, []string{"samples.jsonl: row 1", `field "anwser" is unknown`, "remove it"}},
		{"type", []string{row(`"yes"`, `1`)}, []string{"row 1", "field answer is a JSON number"}},
		{"no answer", []string{row(), row(`"id":"1"`, `"id":"2"`, `"answer":"yes"`, `"answer":""`)}, []string{"row 2", "sample 2", "field answer", "yes or no"}},
		{"outside the options", []string{row(append(choice, `"yes"`, `"C"`)...)}, []string{"row 1", "field answer", `"C"`, "2 options"}},
		{"duplicate id", []string{row(), row()}, []string{"row 2", "field id", `"1"`, "row 1", "unique"}},
		{"split", []string{row(`"train"`, `"dev"`)}, []string{"field split", `"dev"`, "validate"}},
		{"missing image", []string{row("a.png", "gone.png")}, []string{"row 1", "field prompt.images", "gone.png: no such file", "correct the path"}},
		{"truncated PNG", []string{row(), row(`"id":"1"`, `"id":"2"`, "a.png", "cut.png")}, []string{"row 2", "cut.png: damaged or truncated png", "copy the file again"}},
		{"not an image", []string{row("a.png", "text.png")}, []string{"text.png: not a PNG, JPEG or DICOM"}},
		{"turned when shown", []string{row("a.png", "turned.jpg")}, []string{"row 1", "turned.jpg: EXIF orientation 6", "save the picture"}},
		{"outside the directory", []string{row("a.png", "../a.png")}, []string{"leads out of the data set"}},
		{"no image file", []string{row(`"path":"a.png"`, `"view":"PA"`)}, []string{"images[0]", "neither path nor sha256"}},
		{"wrong hash", []string{row(`"path":`, `"sha256":"abc","path":`)}, []string{"sha256 is abc", "correct the hash"}},
		{"not JSON", []string{"id,split"}, []string{"row 1", "not a JSON object"}},
		{"two values", []string{row() + row()}, []string{"row 1", "one object a line"}},
		{"list", []string{"[1]"}, []string{"row 1: a JSON array, want an object"}},
		{"number", []string{"5"}, []string{"row 1: a JSON number, want an object"}},
		{"one option", []string{row(`"binary"`, `"multiple_choice"`, `"images"`, `"options":["x"],"images"`)}, []string{"row 1", "field options has 1", "correct the row"}},
		{"measurement", []string{row(`"answer"`, `"relevant":["heart"],"answer"`)}, []string{"row 1", `field relevant has "heart"`, "ctr"}},
		{"image is a directory", []string{row("a.png", "films")}, []string{"row 1", "films: not a regular file"}},
		{"strip", []string{row("a.png", "strip.png")}, []string{"strip.png: 201 × 1 pixels", "200 times"}},
		{"empty row", []string{row(), "", row(`"id":"1"`, `"id":"2"`)}, []string{"row 2 is empty"}},
		{"nothing", nil, []string{"row 1 is empty"}},
	} {
		_, err := Read(userSet(t, c.rows...))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error of several lines: %q", c.name, err)
		}
	}
}

func TestReadOtherEditorsFiles(t *testing.T) {
	for _, rows := range [][]string{{"\ufeff" + row()}, {row() + "\r", row(`"id":"1"`, `"id":"2"`) + "\r"}} {
		if set, err := Read(userSet(t, rows...)); err != nil || len(set.Samples) != len(rows) {
			t.Errorf("%q: %v", rows[0][:5], err)
		}
	}
}

func TestReadNoticesChangedSamples(t *testing.T) {
	dir := userSet(t, row())
	manifest := `{"name":"x","source":"y","counts":{"train":1},"sha256":"0123"}`
	if err := os.WriteFile(filepath.Join(dir, manifestFile), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "the samples changed") {
		t.Errorf("changed samples: %v", err)
	}
	if _, err := Read(filepath.Join(dir, "gone")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing directory: %v", err)
	}
}

func TestImageNoticesChangedFile(t *testing.T) {
	dir := userSet(t, row())
	set, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.png"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := set.Image(set.Samples[0].Prompt.Images[0].SHA256); err == nil || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("changed image: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(row())
	f.Add(row() + "\n" + row(`"id":"1"`, `"id":"2"`))
	f.Add("{}")
	f.Fuzz(func(t *testing.T, text string) {
		samples, err := decode("f", strings.NewReader(text))
		if err != nil {
			return
		}
		for _, s := range samples {
			if err := s.Validate(); err != nil {
				t.Errorf("decode accepted what Validate refuses: %v", err)
			}
		}
	})
}
