package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// FilesDigest returns the digest of a published set of files, as it stands in a
// [WeightsManifest]: the sha256, in hex, over one line "name sha256" a file, in
// the given order. A worker computes it from what it received.
func FilesDigest(files []File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%s %s\n", f.Name, f.SHA256)
	}
	return hex.EncodeToString(h.Sum(nil))
}
