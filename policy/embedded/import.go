package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// indexFile says which shard holds which tensor, where weights lie in several files.
const indexFile = weightsFile + ".index.json"

// ImportHF reads a Hugging Face folder of a dense Qwen3-VL: config.json and
// model.safetensors, or the shards that model.safetensors.index.json names,
// float32 or bfloat16. Every name, shape and offset is checked before the first
// number is read. The configuration comes back as [ExportHF] writes it: float32,
// in one spelling; so exporting and importing in turn changes no byte.
func ImportHF(dir string) (*Weights, error) {
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	cfg, err := ReadConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	cfg.DType, cfg.Text.DType, cfg.Vision.DType = "float32", "float32", "float32"
	shards, err := openShards(dir)
	defer func() {
		for _, s := range shards {
			s.file.Close() // read only
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	w, err := readShards(cfg, shards)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return w, nil
}

// A shard is an open safetensors file whose header was read and holds together.
type shard struct {
	name   string
	file   *os.File
	header map[string]entry
	body   int64 // offset of the first tensor
}

// openShards opens the files of a folder. The caller closes those returned, of
// which there may be some beside an error.
func openShards(dir string) ([]*shard, error) {
	index, err := os.ReadFile(filepath.Join(dir, indexFile))
	if exists := fileExists(filepath.Join(dir, weightsFile)); exists || errors.Is(err, fs.ErrNotExist) {
		if !exists {
			return nil, noWeights(dir)
		}
		s, err := openShard(dir, weightsFile)
		return []*shard{s}, err
	}
	if err != nil {
		return nil, err
	}
	var list struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(index, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	var shards []*shard
	for _, name := range slices.Compact(slices.Sorted(maps.Values(list.WeightMap))) {
		if filepath.Base(name) != name {
			return shards, fmt.Errorf("%s: shard %q is no file of the folder", indexFile, name)
		}
		s, err := openShard(dir, name)
		shards = append(shards, s)
		if err != nil {
			return shards, err
		}
	}
	return shards, checkIndex(list.WeightMap, shards)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// noWeights says what stands where weights should.
func noWeights(dir string) error {
	for name, remedy := range map[string]string{
		"pytorch_model.bin":            "only safetensors is read: save it with transformers' save_pretrained",
		"pytorch_model.bin.index.json": "only safetensors is read: save it with transformers' save_pretrained",
		"adapter_model.safetensors":    "an adapter is no model: merge it into its base first",
	} {
		if fileExists(filepath.Join(dir, name)) {
			return fmt.Errorf("%s without %s: %s", name, weightsFile, remedy)
		}
	}
	return fmt.Errorf("neither %s nor %s is there", weightsFile, indexFile)
}

// openShard returns a shard to close even beside an error, whatever it is.
func openShard(dir, name string) (*shard, error) {
	s := &shard{name: name}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return s, err
	}
	s.file = f
	if err := s.readHeader(); err != nil {
		return s, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

func (s *shard) readHeader() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	var prefix [8]byte
	if _, err := io.ReadFull(s.file, prefix[:]); err != nil {
		return fmt.Errorf("safetensors file of %d bytes is truncated", info.Size())
	}
	n, err := headerSize(prefix[:], info.Size())
	if err != nil {
		return err
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(s.file, text); err != nil {
		return fmt.Errorf("safetensors header: %w", err)
	}
	if s.header, err = parseHeader(text); err != nil {
		return err
	}
	s.body = 8 + n
	for _, name := range slices.Sorted(maps.Keys(s.header)) {
		if err := s.header[name].check(info.Size() - s.body); err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
	}
	return nil
}

// checkIndex holds that every tensor lies where the index says, and only there.
func checkIndex(where map[string]string, shards []*shard) error {
	var wrong []string
	for _, s := range shards {
		for name := range s.header {
			if said := where[name]; said == "" {
				wrong = append(wrong, fmt.Sprintf("%s holds %s, which the index does not name", s.name, name))
			} else if said != s.name {
				wrong = append(wrong, fmt.Sprintf("%s holds %s, which the index puts into %s", s.name, name, said))
			}
		}
		for name, said := range where {
			if _, ok := s.header[name]; said == s.name && !ok {
				wrong = append(wrong, fmt.Sprintf("%s lacks %s, which the index puts there", s.name, name))
			}
		}
	}
	slices.Sort(wrong)
	if err := mismatch(wrong, "download the folder again"); err != nil {
		return fmt.Errorf("%s: %w", indexFile, err)
	}
	return nil
}

// readShards reads the weights of cfg once all shards are known to hold them.
func readShards(cfg Config, shards []*shard) (*Weights, error) {
	where, shapes := map[string]*shard{}, map[string][]int{}
	for _, s := range shards {
		for name, e := range s.header {
			where[name], shapes[name] = s, e.Shape
		}
	}
	head := where[headName]
	if cfg.TieWordEmbeddings {
		delete(shapes, headName) // compared below
	}
	if err := checkLayout(layout(cfg), shapes); err != nil {
		return nil, err
	}
	w := NewWeights(cfg)
	for _, t := range w.tensors {
		if err := where[t.Name].read(t.Name, t.Data); err != nil {
			return nil, err
		}
	}
	if cfg.TieWordEmbeddings && head != nil {
		return w, w.checkTied(head)
	}
	return w, nil
}

// checkTied holds that a head stored beside a tied embedding equals it.
func (w *Weights) checkTied(s *shard) error {
	embedding := w.Get(textPrefix + "embed_tokens.weight")
	head := make([]float32, len(embedding))
	if n, _ := countElements(s.header[headName].Shape); int(n) == len(head) {
		if err := s.read(headName, head); err != nil {
			return err
		}
	}
	if !slices.Equal(head, embedding) {
		return fmt.Errorf("%s: %s differs from the embedding although tie_word_embeddings is true", s.name, headName)
	}
	return nil
}

// pieceBytes bounds what is read of a file at a time.
const pieceBytes = 1 << 20

// read reads the named tensor of the shard, piece by piece, into x.
func (s *shard) read(name string, x []float32) error {
	e := s.header[name]
	width := e.width()
	piece := make([]byte, min(pieceBytes, e.Offsets[1]-e.Offsets[0]))
	for at := s.body + e.Offsets[0]; len(x) > 0; at += int64(len(piece)) {
		piece = piece[:min(int64(len(piece)), width*int64(len(x)))]
		if _, err := s.file.ReadAt(piece, at); err != nil {
			return fmt.Errorf("%s: tensor %s: %w", s.name, name, err)
		}
		n := decodeInto(x, piece, width)
		if i := notFinite(x[:n]); i >= 0 {
			return fmt.Errorf("%s: tensor %s holds %v: such weights are not taken up", s.name, name, x[i])
		}
		x = x[n:]
	}
	return nil
}

// notFinite returns the index of the first NaN or infinity, -1 without one.
func notFinite(x []float32) int {
	return slices.IndexFunc(x, func(v float32) bool { return v-v != 0 })
}
