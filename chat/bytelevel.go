package chat

import (
	"fmt"
	"strings"
)

// Byte-level vocabularies write each byte as one printable rune (GPT-2's
// table): printable Latin-1 as itself, the other 68 bytes from U+0100 on.
var (
	byteRune [256]rune
	runeByte = map[rune]byte{}
)

func init() {
	next := rune(0x100)
	for b := range byteRune {
		r := rune(b)
		if !printable(r) {
			r = next
			next++
		}
		byteRune[b], runeByte[r] = r, byte(b)
	}
}

func printable(r rune) bool {
	return r >= '!' && r <= '~' || r >= 0xa1 && r <= 0xac || r >= 0xae && r <= 0xff
}

// byteOrder lists the bytes in the order that their ids have in such a
// vocabulary: by rune.
func byteOrder() []byte {
	var printed, moved []byte
	for b := range byteRune {
		if byteRune[b] < 0x100 {
			printed = append(printed, byte(b))
		} else {
			moved = append(moved, byte(b))
		}
	}
	return append(printed, moved...)
}

func toByteLevel(raw []byte) string {
	var w strings.Builder
	for _, b := range raw {
		w.WriteRune(byteRune[b])
	}
	return w.String()
}

func fromByteLevel(text string) ([]byte, error) {
	raw := make([]byte, 0, len(text))
	for _, r := range text {
		b, ok := runeByte[r]
		if !ok {
			return nil, fmt.Errorf("rune %q is no byte of a byte-level vocabulary", r)
		}
		raw = append(raw, b)
	}
	return raw, nil
}
