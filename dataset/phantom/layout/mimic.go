package layout

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"xragent/dataset/phantom"
)

// mimic is MIMIC-CXR-JPG 2.0.0 (Johnson et al. 2019): a folder a study below
// files/, four tables beside it; and the reports of MIMIC-CXR as text files in
// the same folders.
type mimic struct {
	metadata, split, labels [][]string
	counts                  map[string]int
}

const tables = "mimic-cxr-2.0.0-"

var (
	metadataColumns = []string{
		"dicom_id", "subject_id", "study_id", "PerformedProcedureStepDescription", "ViewPosition", "Rows", "Columns", "StudyDate", "StudyTime",
		"ProcedureCodeSequence_CodeMeaning", "ViewCodeSequence_CodeMeaning", "PatientOrientationCodeSequence_CodeMeaning",
	}
	splitColumns = []string{"dicom_id", "study_id", "subject_id", "split"}
	labelColumns = []string{
		"Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture", "Lung Lesion",
		"Lung Opacity", "No Finding", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices",
	}
	// findingColumns names the column of each finding that a report may name.
	findingColumns = map[string]string{
		phantom.Cardiomegaly: "Cardiomegaly", phantom.Effusion: "Pleural Effusion", phantom.Pneumothorax: "Pneumothorax",
		phantom.Consolidation: "Consolidation", phantom.Nodule: "Lung Lesion", phantom.VolumeLoss: "Atelectasis",
		phantom.TubeMalposition: "Support Devices", phantom.Edema: "Edema",
	}
	viewNames = map[phantom.View]string{phantom.PA: "postero-anterior", phantom.AP: "antero-posterior", phantom.Lateral: "lateral"}
)

func (m *mimic) add(dir string, f film) error {
	subject, study, dicom := 10000000+f.number, 50000000+f.number, dicomID(f.sha)
	if m.counts == nil {
		m.counts = map[string]int{}
	}
	m.counts[part(f.Split)]++
	size := strconv.Itoa(phantom.Size)
	m.metadata = append(m.metadata, []string{
		dicom, strconv.Itoa(subject), strconv.Itoa(study), "CHEST", string(f.Truth.View), size, size, "21800101", "120000.0",
		"CHEST", viewNames[f.Truth.View], "Erect",
	})
	m.split = append(m.split, []string{dicom, strconv.Itoa(study), strconv.Itoa(subject), part(f.Split)})
	m.labels = append(m.labels, append([]string{strconv.Itoa(subject), strconv.Itoa(study)}, labels(f)...))
	folder := filepath.Join(dir, "files", fmt.Sprintf("p%02d", subject/1000000), fmt.Sprintf("p%d", subject))
	if err := write(filepath.Join(folder, fmt.Sprintf("s%d.txt", study)), report(f.Report)); err != nil {
		return err
	}
	return write(filepath.Join(folder, fmt.Sprintf("s%d", study), dicom+".jpg"), f.jpg)
}

// dicomID spells a hash as the data set's image ids are spelt.
func dicomID(sha string) string {
	return strings.Join([]string{sha[:8], sha[8:16], sha[16:24], sha[24:32], sha[32:40]}, "-")
}

// labels are 1.0 positive, 0.0 negative, -1.0 uncertain, and blank for what no
// phantom has. They come from the generator, not from a labeller.
func labels(f film) []string {
	state := map[string]string{}
	for _, name := range phantom.Findings {
		state[findingColumns[name]] = "0.0"
	}
	for _, name := range f.Masked {
		state[findingColumns[name]] = "-1.0"
	}
	for _, name := range f.Positive {
		state[findingColumns[name]] = "1.0"
	}
	if len(f.Positive) == 0 {
		state["No Finding"] = "1.0"
	}
	if slices.ContainsFunc(f.Truth.Findings, func(x phantom.Finding) bool { return x.Name == phantom.Scar }) {
		state["Pleural Other"] = "1.0"
	}
	if slices.ContainsFunc(f.Truth.Findings, func(x phantom.Finding) bool { return x.TipMM != 0 }) {
		state["Support Devices"] = "1.0"
	}
	var out []string
	for _, column := range labelColumns {
		out = append(out, state[column])
	}
	return out
}

// report sets the words as MIMIC-CXR's reports are set: indented by a blank,
// lines of at most 79 characters, section names in capitals.
func report(text string) []byte {
	var b bytes.Buffer
	b.WriteString(" FINAL REPORT\n EXAMINATION:  CHEST\n \n FINDINGS: \n \n")
	line := ""
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 79 {
			b.WriteString(line + "\n")
			line = ""
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
	return b.Bytes()
}

func (m *mimic) finish(dir string) (string, map[string]int, error) {
	named := append([]string{"subject_id", "study_id"}, labelColumns...)
	for _, t := range []struct {
		name    string
		columns []string
		rows    [][]string
	}{
		{"metadata", metadataColumns, m.metadata}, {"split", splitColumns, m.split},
		{"chexpert", named, m.labels}, {"negbio", named, m.labels},
	} {
		var b bytes.Buffer
		c := csv.NewWriter(&b)
		if err := c.WriteAll(append([][]string{t.columns}, t.rows...)); err != nil {
			return "", nil, err
		}
		if err := write(filepath.Join(dir, tables+t.name+".csv"), b.Bytes()); err != nil {
			return "", nil, err
		}
	}
	return tables + "metadata.csv", m.counts, nil
}
