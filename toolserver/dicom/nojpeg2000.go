//go:build !openjpeg || !cgo

package dicom

// decodeJPEG2000 is in openjpeg.go, for programs built with that tag.
func decodeJPEG2000([]byte, *frame) ([]uint16, error) {
	return nil, refuse(Unsupported, "JPEG 2000 needs a program built with -tags openjpeg (and Debian's libopenjp2-7-dev); or convert the file to explicit little endian")
}
