// Command phantommasks writes frontal phantom films with their true masks, for
// learner/segment.py: NAME.png with NAME_right_lung.png, NAME_left_lung.png and
// NAME_heart.png (0 and 255), the layout that xragent measure --masks-from
// reads.
//
//	go run ./scripts/phantommasks -seed 4711 -films 600 DIR
package main

import (
	"flag"
	"fmt"
	"image"
	"image/png"
	"log"
	"os"
	"path/filepath"

	"xragent/dataset/phantom"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("phantommasks: ")
	seed := flag.Uint64("seed", 4711, "the phantoms' seed")
	films := flag.Int("films", 600, "how many films to write; lateral ones, which have no masks, are left out")
	flag.Parse()
	if flag.NArg() != 1 || *films < 1 {
		log.Fatal("want one folder, and -films of 1 or more")
	}
	if err := write(flag.Arg(0), *seed, *films); err != nil {
		log.Fatal(err)
	}
}

// write writes the first films that are frontal, half of them from the
// out-of-distribution split, whose textures and exposures differ.
func write(dir string, seed uint64, films int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cfg := phantom.Config{Seed: seed, Train: films, OOD: films}
	for i, done := 0, 0; done < films; i++ {
		index := i / 2
		if i%2 == 1 {
			index += films
		}
		if phantom.Describe(cfg, index).Truth.View == phantom.Lateral {
			continue
		}
		done++
		if err := writeFilm(dir, phantom.Generate(cfg, index)); err != nil {
			return err
		}
	}
	return nil
}

func writeFilm(dir string, s phantom.Study) error {
	m := s.Truth.Masks()
	for _, part := range []struct {
		suffix string
		img    *image.Gray
	}{{"", s.Image}, {"_right_lung", m.RightLung}, {"_left_lung", m.LeftLung}, {"_heart", m.Heart}} {
		if err := writePNG(filepath.Join(dir, fmt.Sprintf("phantom-%s%s.png", s.ID, part.suffix)), part.img); err != nil {
			return err
		}
	}
	return nil
}

func writePNG(path string, img image.Image) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := png.Encode(f, img); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
