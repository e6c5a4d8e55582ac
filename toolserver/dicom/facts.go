package dicom

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A View is a projection. Other is one that is known and is none of the rest,
// a decubitus or an oblique one.
type View string

// The views.
const (
	PA      View = "PA"
	AP      View = "AP"
	Lateral View = "LATERAL"
	Other   View = "OTHER"
	Unknown View = ""
)

// viewOf reads the view from the view position, else from the view's code, else
// from the protocol's name, and says which. Where none of them can be read as a
// view it names the first that speaks of several: what may be a lateral film is
// no film without a view.
func viewOf(h *header) (View, string) {
	code, doubt := h.item(tagViewCode), ""
	if code == nil {
		code = &header{}
	}
	for _, s := range []struct{ from, code, words string }{
		{"view_position", "", h.text(tagViewPosition)},
		{"view_code", code.text(tagCode), code.text(tagCodeMeaning)},
		{"protocol_name", "", h.text(tagProtocol)},
	} {
		v, several := viewByWords(s.words)
		if c := viewByCode(s.code); c != Unknown {
			v = c
		}
		if v != Unknown {
			return v, s.from
		}
		if several && doubt == "" {
			doubt = s.from
		}
	}
	return Unknown, doubt
}

// viewByCode knows the codes of context group 4010 (SNOMED CT, and its older
// identifiers) for the projections in question.
func viewByCode(code string) View {
	switch code {
	case "399348003", "R-10206":
		return AP
	case "272479007", "R-10214":
		return PA
	case "399067008", "399198007", "399173006", "R-10228", "R-10232", "R-10236":
		return Lateral
	}
	return Unknown
}

// viewByWords looks for a view's words in text. Of several views a decubitus or
// an oblique one goes before the others, which describe it; else they leave it
// unknown.
func viewByWords(text string) (v View, several bool) {
	words := strings.FieldsFunc(strings.ToUpper(text), func(r rune) bool { return !unicode.IsLetter(r) })
	for i, w := range words[:max(len(words)-1, 0)] {
		words[i] = joined(w, words[i+1])
	}
	found := map[View]bool{}
	for _, w := range words {
		found[viewByWord(w)] = true
	}
	delete(found, Unknown)
	switch {
	case found[Other]:
		return Other, false
	case len(found) > 1:
		return Unknown, true
	}
	for v := range found {
		return v, false
	}
	return Unknown, false
}

// joined reads the two-word forms, "P A" and "POSTERO ANTERIOR", as one.
func joined(a, b string) string {
	switch {
	case a == "P" && b == "A", strings.HasPrefix(a, "POSTER") && strings.HasPrefix(b, "ANTERIOR"):
		return "PA"
	case a == "A" && b == "P", strings.HasPrefix(a, "ANTER") && strings.HasPrefix(b, "POSTERIOR"):
		return "AP"
	}
	return a
}

// viewByWord knows the terms of PS3.3 C.8.1.1.2 and common others.
func viewByWord(w string) View {
	switch w {
	case "PA", "POSTEROANTERIOR":
		return PA
	case "AP", "ANTEROPOSTERIOR":
		return AP
	case "LL", "RL", "LAT", "LATERAL", "LLAT", "RLAT", "XTABLE", "CROSSTABLE":
		return Lateral
	case "RLD", "LLD", "RLO", "LLO", "RAO", "LAO", "RPO", "LPO", "LDECUB", "RDECUB", "OBLIQUE", "OBL", "AXIAL", "LORDOTIC", "TANGENTIAL", "SWIMMERS":
		return Other
	}
	if strings.HasPrefix(w, "DECUB") {
		return Other
	}
	return Unknown
}

// against reads the patient's orientation, the directions of rows and columns
// (PS3.3 C.7.6.1.1.1), where it speaks against a frontal film with the patient's
// left at its right: Other for one that is mirrored or upside down, Lateral for
// rows that run from front to back.
func against(orientation string) View {
	rows, columns, _ := strings.Cut(strings.ToUpper(orientation), `\`)
	switch {
	case strings.HasPrefix(rows, "A") || strings.HasPrefix(rows, "P"):
		return Lateral
	case strings.HasPrefix(rows, "R") || strings.HasPrefix(columns, "H"):
		return Other
	}
	return Unknown
}

// modalities are those whose images can be projection radiographs. OT and SC
// say nothing, and are left to the view check.
var modalities = []string{"", "CR", "DX", "DR", "RG", "OT", "SC"}

// otherModalities are defined terms (PS3.3 C.7.3.1.1.1); what else stands there
// could be anything, and does not leave.
var otherModalities = []string{"CT", "MR", "US", "XA", "RF", "NM", "PT", "MG", "IO", "PX", "BMD", "ES", "XC", "GM", "SM", "OP", "OPT", "OCT", "IVUS", "IVOCT",
	"ECG", "EPS", "HD", "DOC", "SR", "SEG", "PR", "KO", "REG", "RTIMAGE", "RTSTRUCT", "RTDOSE", "RTPLAN", "AU", "ANN", "M3D"}

// sopClasses that are none, for files whose modality says nothing.
var sopClasses = map[string]string{
	"2": "CT", "2.1": "CT", "4": "MR", "4.1": "MR", "6.1": "US", "3.1": "US", "12.1": "XA", "12.2": "RF", "20": "NM", "128": "PT",
	"1.2": "MG", "1.3": "IO", "88.11": "SR", "104.1": "DOC", "66.4": "SEG", "11.1": "PR",
}

// radiograph refuses modalities that are no projection radiographs.
func radiograph(modality, sopClass string) error {
	if byClass := sopClasses[strings.TrimPrefix(sopClass, "1.2.840.10008.5.1.4.1.1.")]; byClass != "" && slices.Contains(modalities, modality) {
		modality = byClass
	}
	if slices.Contains(modalities, modality) {
		return nil
	}
	if !slices.Contains(otherModalities, modality) {
		modality = "of another kind"
	}
	return refuse(NotRadiograph, "modality %s is not a projection radiograph: give CR or DX images", modality)
}

// bodyParts are defined terms near the chest and far from it; a term outside
// the list could hold anything, and does not leave.
var bodyParts = []string{"", "CHEST", "THORAX", "LUNG", "RIB", "RIBS", "ABDOMEN", "EXTREMITY", "HAND", "FOOT", "KNEE", "HIP", "PELVIS", "SKULL",
	"HEAD", "NECK", "SHOULDER", "ELBOW", "WRIST", "ANKLE", "LEG", "ARM", "SPINE", "CSPINE", "TSPINE", "LSPINE", "CLAVICLE", "HEART", "TEETH", "JAW", "BREAST"}

func bodyPart(term string) string {
	if slices.Contains(bodyParts, term) {
		return term
	}
	return "OTHER"
}

// oldest is the age from which on ages identify, and are cut.
const oldest = 90

// age reads an age string, nnnD, nnnW, nnnM or nnnY, in years; 0 when unknown. A
// newborn is a day old: 0 of a unit is an age too.
func age(s string) float64 {
	const year = 365.25
	if len(s) < 2 {
		return 0
	}
	n, err := strconv.ParseFloat(s[:len(s)-1], 64)
	days := map[byte]float64{'D': 1, 'W': 7, 'M': year / 12, 'Y': year}[s[len(s)-1]&^0x20]
	if err != nil || days == 0 || !(n >= 0 && n <= 999) {
		return 0
	}
	return min(max(n*days, 1)/year, oldest)
}

func burntIn(term string) Risk {
	switch term {
	case "YES":
		return BurntInYes
	case "NO":
		return BurntInNo
	}
	return BurntInUnknown
}

// A Spacing is the distance between pixel centres, in millimetres, 0 when
// unknown, with where it comes from.
type Spacing struct {
	RowMM, ColumnMM float64 // between rows, and between columns
	// From is calibrated_spacing (in the patient), imager_spacing (at the
	// detector: the patient is smaller by the geometric magnification),
	// imager_spacing_corrected (divided by the magnification that the file
	// gives), pixel_spacing (of a file that does not say in which plane) or ""
	// when unknown.
	From   string
	Square bool // by spacing or aspect ratio
}

func spacingOf(h *header) Spacing {
	imager, pixel := pair(h.decimals(tagImagerSpace)), pair(h.decimals(tagPixelSpacing))
	s := Spacing{}
	switch {
	case pixel != nil && (h.term(tagSpacingFrom) != "" || imager != nil && pixel[0] != imager[0]):
		s = Spacing{RowMM: pixel[0], ColumnMM: pixel[1], From: "calibrated_spacing"}
	case pixel != nil && imager == nil:
		s = Spacing{RowMM: pixel[0], ColumnMM: pixel[1], From: "pixel_spacing"}
	case imager != nil:
		s = Spacing{RowMM: imager[0], ColumnMM: imager[1], From: "imager_spacing"}
		if m := h.decimals(tagMagnified); len(m) == 1 && m[0] >= 1 && m[0] < 2 {
			s = Spacing{RowMM: imager[0] / m[0], ColumnMM: imager[1] / m[0], From: "imager_spacing_corrected"}
		}
	}
	if s.From != "" {
		s.Square = s.RowMM == s.ColumnMM
		return s
	}
	aspect := h.decimals(tagAspect)
	s.Square = len(aspect) != 2 || aspect[0] == aspect[1] // without spacing pixels are square (PS3.3 C.7.6.3.1.7)
	return s
}

// pair returns two plausible distances, or nil.
func pair(v []float64) []float64 {
	if len(v) != 2 || v[0] < 0.001 || v[1] < 0.001 || v[0] > 10 || v[1] > 10 {
		return nil
	}
	return v
}
