//go:build openjpeg && cgo

package dicom

/*
#cgo pkg-config: libopenjp2
#include <openjpeg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const uint8_t *data; size_t size, at; } source;

static OPJ_SIZE_T source_read(void *to, OPJ_SIZE_T n, void *user) {
	source *s = user;
	if (s->at >= s->size) return (OPJ_SIZE_T)-1;
	if (n > s->size - s->at) n = s->size - s->at;
	memcpy(to, s->data + s->at, n);
	s->at += n;
	return n;
}

static OPJ_OFF_T source_skip(OPJ_OFF_T n, void *user) {
	source *s = user;
	if (n < 0 || (size_t)n > s->size - s->at) return -1;
	s->at += n;
	return n;
}

static OPJ_BOOL source_seek(OPJ_OFF_T n, void *user) {
	source *s = user;
	if (n < 0 || (size_t)n > s->size) return OPJ_FALSE;
	s->at = n;
	return OPJ_TRUE;
}

static void silent(const char *message, void *user) { (void)message; (void)user; }

// decode_j2k writes w * h samples to out. It returns 0, or 1: damaged, 2:
// another size or number of components than expected.
static int decode_j2k(const uint8_t *data, size_t size, uint32_t w, uint32_t h, uint16_t *out) {
	int result = 1;
	source src = { data, size, 0 };
	opj_dparameters_t params;
	opj_image_t *image = NULL;
	int boxed = size > 12 && memcmp(data + 4, "jP  ", 4) == 0;
	opj_codec_t *codec = opj_create_decompress(boxed ? OPJ_CODEC_JP2 : OPJ_CODEC_J2K);
	opj_stream_t *stream = opj_stream_default_create(OPJ_TRUE);
	opj_set_default_decoder_parameters(&params);
	opj_stream_set_read_function(stream, source_read);
	opj_stream_set_skip_function(stream, source_skip);
	opj_stream_set_seek_function(stream, source_seek);
	opj_stream_set_user_data(stream, &src, NULL);
	opj_stream_set_user_data_length(stream, size);
	opj_set_error_handler(codec, silent, NULL);
	opj_set_warning_handler(codec, silent, NULL);
	opj_set_info_handler(codec, silent, NULL);
	if (!opj_setup_decoder(codec, &params) || !opj_decoder_set_strict_mode(codec, OPJ_TRUE) || !opj_read_header(stream, codec, &image)) goto done;
	result = 2;
	if (image->numcomps != 1 || image->x1 - image->x0 != w || image->y1 - image->y0 != h) goto done;
	result = 1;
	if (!opj_decode(codec, stream, image) || !opj_end_decompress(codec, stream)) goto done;
	if (image->comps[0].data == NULL || image->comps[0].w != w || image->comps[0].h != h) goto done;
	for (size_t i = 0; i < (size_t)w * h; i++) out[i] = (uint16_t)image->comps[0].data[i];
	result = 0;
done:
	if (image) opj_image_destroy(image);
	opj_stream_destroy(stream);
	opj_destroy_codec(codec);
	return result;
}
*/
import "C"

import "unsafe"

// decodeJPEG2000 decodes with OpenJPEG. The sizes are checked between the code
// stream's header and its pixels.
func decodeJPEG2000(data []byte, f *frame) ([]uint16, error) {
	if len(data) == 0 {
		return nil, refuse(Truncated, "the JPEG 2000 frame is empty")
	}
	out := make([]uint16, f.rows*f.columns)
	switch C.decode_j2k((*C.uint8_t)(unsafe.Pointer(&data[0])), C.size_t(len(data)), C.uint32_t(f.columns), C.uint32_t(f.rows), (*C.uint16_t)(unsafe.Pointer(&out[0]))) {
	case 0:
		return out, nil
	case 2:
		return nil, refuse(Damaged, "the JPEG 2000 frame has another size or more components than the header's %d x %d", f.columns, f.rows)
	}
	return nil, refuse(Damaged, "the JPEG 2000 frame is truncated or damaged: copy the file again")
}
