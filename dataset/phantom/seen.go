package phantom

import "strings"

// Seen states, in fixed words, what a crop of a region shows that is named as
// the tools name them: of a zone the nodule in it, of an apex the pleural line,
// of a costophrenic angle what fills it, of the trachea where the tube ends. It
// returns "" for regions of which no crop tells anything. Like the rest of the
// truth it is for teachers and tests.
func (t Truth) Seen(region string) string {
	if t.View == Lateral {
		return ""
	}
	if region == "trachea" {
		return t.seenTube()
	}
	side, part, _ := strings.Cut(region, " ")
	zone, isZone := strings.CutSuffix(part, " zone")
	switch {
	case side != sideNames[right] && side != sideNames[left]:
		return ""
	case isZone:
		return t.seenNodule(side, zone)
	case part == "apex":
		return t.seenOn(side, Pneumothorax, "pleural line", "no pleural line")
	case part == "costophrenic angle":
		return t.seenOn(side, Effusion, "fluid", t.seenOn(side, Scar, "scar", "sharp angle"))
	}
	return ""
}

func (t Truth) seenTube() string {
	for _, f := range t.Findings {
		switch f.Name {
		case tube:
			return "tip above the carina"
		case TubeMalposition:
			return "tip in the right bronchus"
		}
	}
	return "no tube"
}

func (t Truth) seenNodule(side, zone string) string {
	for _, f := range t.Findings {
		if f.Name == Nodule && f.Side == side && f.Zone == zone {
			return f.Margin + " nodule"
		}
	}
	return "no nodule"
}

func (t Truth) seenOn(side, name, yes, no string) string {
	for _, f := range t.Findings {
		if f.Name == name && f.Side == side {
			return yes
		}
	}
	return no
}
