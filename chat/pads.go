package chat

import "fmt"

// Expand replaces the i-th image-pad id of compact ids by pads[i] of them: the
// form that a model's forward pass needs, one id for every merged patch,
// pads[i] = t·h·w/merge² (see rollout.ImageUse.PadTokens). Together with
// [Compact] it is the only place where the two forms meet.
//
// A count of placeholders other than len(pads) is an error: such a prompt has
// been expanded before or belongs to other images.
func Expand(ids []int32, pads []int, imagePad int32) ([]int32, error) {
	marks, size := 0, len(ids)
	for _, id := range ids {
		if id == imagePad {
			marks++
		}
	}
	for i, n := range pads {
		if n <= 0 {
			return nil, fmt.Errorf("image %d: %d pad tokens, want at least 1", i, n)
		}
		size += n - 1
	}
	if marks != len(pads) {
		return nil, fmt.Errorf("prompt has %d image placeholders for %d images; pass the compact prompt of these images", marks, len(pads))
	}
	out := make([]int32, 0, size)
	next := 0
	for _, id := range ids {
		out = append(out, id)
		if id != imagePad {
			continue
		}
		for range pads[next] - 1 {
			out = append(out, imagePad)
		}
		next++
	}
	return out, nil
}

// Compact undoes [Expand]: every run of image pads becomes one, and pads holds
// the runs' lengths. Two images are never adjacent, since a vision-start and a
// vision-end id stand around each.
func Compact(ids []int32, imagePad int32) (compact []int32, pads []int) {
	for i, id := range ids {
		switch {
		case id != imagePad:
			compact = append(compact, id)
		case i > 0 && ids[i-1] == imagePad:
			pads[len(pads)-1]++
		default:
			compact, pads = append(compact, id), append(pads, 1)
		}
	}
	return compact, pads
}
