//go:build !charls || !cgo

package dicom

// decodeJPEGLS is in charls.go, for programs built with that tag.
func decodeJPEGLS([]byte, *frame) ([]uint16, error) {
	return nil, refuse(Unsupported, "JPEG-LS needs a program built with -tags charls (and Debian's libcharls-dev); or convert the file to explicit little endian")
}
