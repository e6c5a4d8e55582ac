//go:build charls && cgo

package dicom

/*
#cgo pkg-config: charls
#include <charls/charls.h>
#include <stdint.h>

// decode_jpegls writes w * h samples of the given bytes to out. It returns 0,
// or 1: damaged, 2: another size, depth or number of components than expected.
static int decode_jpegls(const uint8_t *data, size_t size, uint32_t w, uint32_t h, int bytes, void *out) {
	charls_frame_info info;
	charls_jpegls_decoder *d = charls_jpegls_decoder_create();
	int result = 1;
	if (!d) return 1;
	if (charls_jpegls_decoder_set_source_buffer(d, data, size) || charls_jpegls_decoder_read_header(d) ||
	    charls_jpegls_decoder_get_frame_info(d, &info)) goto done;
	result = 2;
	if (info.width != w || info.height != h || info.component_count != 1 || (info.bits_per_sample + 7) / 8 != bytes) goto done;
	result = charls_jpegls_decoder_decode_to_buffer(d, out, (size_t)w * h * bytes, 0) ? 1 : 0;
done:
	charls_jpegls_decoder_destroy(d);
	return result;
}
*/
import "C"

import "unsafe"

// decodeJPEGLS decodes with CharLS.
func decodeJPEGLS(data []byte, f *frame) ([]uint16, error) {
	if len(data) == 0 {
		return nil, refuse(Truncated, "the JPEG-LS frame is empty")
	}
	out := make([]uint16, f.rows*f.columns)
	var narrow []uint8
	size, to := 2, unsafe.Pointer(&out[0])
	if f.stored <= 8 {
		narrow = make([]uint8, len(out))
		size, to = 1, unsafe.Pointer(&narrow[0])
	}
	switch C.decode_jpegls((*C.uint8_t)(unsafe.Pointer(&data[0])), C.size_t(len(data)), C.uint32_t(f.columns), C.uint32_t(f.rows), C.int(size), to) {
	case 1:
		return nil, refuse(Damaged, "the JPEG-LS frame is truncated or damaged: copy the file again")
	case 2:
		return nil, refuse(Damaged, "the JPEG-LS frame has another size, depth or more components than the header's %d x %d", f.columns, f.rows)
	}
	for i, v := range narrow {
		out[i] = uint16(v)
	}
	return out, nil
}
