package phantom

import (
	"math/rand/v2"

	"xragent/rollout"
)

// What the questions are about, by the capabilities of the field's benchmarks.
const (
	detection        = "detection"
	classification   = "classification"
	localization     = "localization"
	comparison       = "comparison"
	relationship     = "relationship"
	characterization = "characterization"
	diagnosis        = "diagnosis"
)

const (
	reportName    = "report"
	diagnosisName = "diagnosis"
	enlargedHeart = 3 // among the answers to diagnosisName
)

var (
	bothSides = []string{"right", "left"}
	noSide    = []string{"both sides", "neither side", "mediastinum"}
	yesNo     = []string{"yes", "no"}
	quiet     = []string{tube, TubeMalposition}
	calm      = []string{tube, TubeMalposition, Nodule}
	anything  = []string{Nodule, Consolidation, Effusion, Pneumothorax, Edema, VolumeLoss, tube, TubeMalposition}
	allZones  = []string{
		"right upper zone", "right middle zone", "right lower zone",
		"left upper zone", "left middle zone", "left lower zone",
	}
)

// templates holds every family of questions. Most serve two needs or more with
// the same words: what they ask for is large and seen at once, or small. The
// weights are percent of all questions; those of a need add up to its share.
var templates = []template{
	{
		name: "projection", capability: classification, need: map[Need]float64{NeedCoarse: 2.5}, plain: true,
		answers: []string{"PA", "AP", "lateral"}, fillers: []string{"oblique", "decubitus"},
		words: "Which projection is this film?", closed: "Which projection: PA, AP or lateral?",
		allow: anything, arrange: func(p *plan, _ *rand.Rand, a int) { p.view = []View{PA, AP, Lateral}[a] },
	},
	{
		name: "nodule-zone", capability: localization, need: map[Need]float64{NeedCoarse: 1.6, NeedCrop: 1.4}, answers: allZones,
		words: "Where is the nodule?", closed: "Which zone of which lung holds the nodule?",
		allow: quiet, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.nodule(rng, a/3, a%3, pick(rng, smooth, spiculated)) },
	},
	{
		name: "nodule-margin", capability: characterization, need: map[Need]float64{NeedCoarse: 1.2, NeedCrop: 1.1},
		answers: []string{smooth, spiculated}, fillers: []string{"calcified", "cavitated", "lobulated"},
		words: "What margin has the nodule{at}?", closed: "Is the nodule{at} smooth or spiculated?", allow: quiet,
		arrange: func(p *plan, rng *rand.Rand, a int) {
			p.nodule(rng, p.askedSide, p.askedZone, []string{smooth, spiculated}[a])
		},
	},
	{
		name: "nodule-side", capability: localization, need: map[Need]float64{NeedCoarse: 1, NeedCrop: 0.9},
		answers: yesNo, binary: true, words: "Is the nodule in the {side} lung?", allow: quiet,
		arrange: func(p *plan, rng *rand.Rand, a int) {
			p.nodule(rng, p.askedSide^a, rng.IntN(3), pick(rng, smooth, spiculated))
		},
	},
	{
		name: "nodule-count", capability: detection, need: map[Need]float64{NeedCoarse: 1.6, NeedParse: 1.5},
		answers: []string{"1", "2", "3"}, fillers: []string{"4", "5"},
		words: "How many nodules are in the {side} lung?", closed: "How many nodules, 1 to 3, are in the {side} lung?", allow: quiet,
		arrange: func(p *plan, rng *rand.Rand, a int) {
			for i, zone := range rng.Perm(3) {
				if i <= a {
					p.nodule(rng, p.askedSide, zone, smooth)
				}
			}
		},
	},
	{
		name: "same-side", capability: relationship, need: map[Need]float64{NeedCoarse: 1.2, NeedCrop: 1.1},
		answers: yesNo, binary: true, words: "Are the nodule and the effusion on the same side?", allow: quiet, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.pair(rng, a == 0) },
	},
	{
		name: "abnormal-zone", capability: detection, need: map[Need]float64{NeedCoarse: 1.7, NeedParse: 1.5},
		answers: yesNo, binary: true, words: "Is the {zone} abnormal?", allow: quiet,
		arrange: func(p *plan, rng *rand.Rand, a int) {
			side, zone := p.askedSide, p.askedZone
			if a == 1 {
				side, zone = p.elsewhere(rng)
			}
			p.pattern(rng, side, zone)
		},
	},
	{
		name: "texture", capability: characterization, need: map[Need]float64{NeedParse: 0.5},
		answers: []string{"clear", "slight", "marked"}, fillers: []string{"calcified", "cystic"},
		words: "How abnormal is the texture of the {zone}?", closed: "Is the texture of the {zone} clear, slight or marked?", allow: calm,
		arrange: func(p *plan, rng *rand.Rand, a int) {
			side, zone, marked := p.askedSide, p.askedZone, a == 2
			if a == 0 {
				side, zone = p.elsewhere(rng)
				marked = chance(rng, 0.5)
			}
			p.edema(rng, side, zone, marked)
		},
	},
	{
		name: "pneumothorax-side", capability: detection, need: map[Need]float64{NeedCoarse: 0.5, NeedCrop: 0.4},
		answers: bothSides, fillers: noSide, words: "On which side is the pneumothorax?",
		closed: "On which side is the pneumothorax: right or left?", allow: calm, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.pneumothorax(rng, a) },
	},
	{
		name: "pneumothorax-on", capability: detection, need: map[Need]float64{NeedCoarse: 1.1, NeedCrop: 1},
		answers: yesNo, binary: true, words: "Is the pneumothorax on the {side}?", allow: calm, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.pneumothorax(rng, p.askedSide^a) },
	},
	{
		name: "effusion-side", capability: detection, need: map[Need]float64{NeedCoarse: 0.6, NeedCrop: 0.5},
		answers: bothSides, fillers: noSide, words: "On which side is the effusion?",
		closed: "On which side is the effusion: right or left?", allow: calm, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.effusion(rng, a) },
	},
	{
		name: "effusion-on", capability: detection, need: map[Need]float64{NeedCoarse: 1.2, NeedCrop: 1.1},
		answers: yesNo, binary: true, words: "Is the effusion on the {side}?", allow: calm, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.effusion(rng, p.askedSide^a) },
	},
	{
		// The answers are uniform over the three needs together.
		name: diagnosisName, capability: diagnosis, general: true, plain: true, relevant: []string{rollout.Asymmetry},
		need:    map[Need]float64{NeedCoarse: 3, NeedCrop: 4.5, NeedBundle: 3},
		answers: []string{"effusion", "pneumothorax", "nodule", "cardiomegaly", "volume loss"},
		only:    map[Need][]int{NeedCrop: {0, 1, 2}, NeedBundle: {enlargedHeart, 4}},
		words:   "What is the main finding?", allow: []string{tube}, sided: true,
		closed:  "Main finding: effusion, pneumothorax, nodule, cardiomegaly or volume loss?",
		arrange: func(p *plan, rng *rand.Rand, a int) { p.mainFinding(rng, a) },
	},
	{
		name: "abnormal-side", capability: comparison, general: true, relevant: []string{rollout.Asymmetry},
		need:    map[Need]float64{NeedCoarse: 1.2, NeedCrop: 1.8, NeedParse: 4.2, NeedBundle: 2.8, NeedMisleading: 3.05},
		answers: bothSides, fillers: noSide, words: "Which lung is abnormal?", closed: "Which lung is abnormal: right or left?",
		allow: quiet, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.anomaly(rng, a) },
	},
	{
		name: "abnormal-on", capability: detection, general: true, relevant: []string{rollout.Asymmetry},
		need:    map[Need]float64{NeedCoarse: 1.2, NeedCrop: 4.2, NeedParse: 1.8, NeedBundle: 2.8, NeedMisleading: 3.05},
		answers: yesNo, binary: true, words: "Is the {side} lung the abnormal one?",
		allow: quiet, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.anomaly(rng, p.askedSide^a) },
	},
	{
		name: "less-air", capability: comparison, general: true, relevant: []string{rollout.Asymmetry},
		need:    map[Need]float64{NeedCoarse: 1.2, NeedParse: 5.5, NeedBundle: 2.5, NeedMisleading: 2.7},
		answers: bothSides, fillers: noSide, words: "Which lung has less air?", closed: "Which lung has less air: right or left?",
		allow: quiet, sided: true,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.airless(rng, a) },
	},
	{
		name: "tube-tip", capability: localization, need: map[Need]float64{NeedCoarse: 1.1, NeedCrop: 1},
		answers: []string{"above the carina", "in the right bronchus"}, fillers: []string{"in the left bronchus", "in the esophagus", "in the neck"},
		words: "Where is the tube tip?", closed: "Is the tube tip above the carina or in the right bronchus?", allow: []string{Nodule},
		arrange: func(p *plan, rng *rand.Rand, a int) { p.intubate(rng, a) },
	},
	{
		name: "heart-size", capability: classification, relevant: []string{rollout.CTR},
		need:    map[Need]float64{NeedBundle: 1, NeedMisleading: 2},
		answers: []string{"normal", "borderline", "enlarged"}, fillers: []string{"absent", "shrunken"},
		words: "What is the heart size?", closed: "Is the heart normal, borderline or enlarged?", allow: calm,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.heartSize(rng, a) },
	},
	{
		name: "heart-enlarged", capability: classification, relevant: []string{rollout.CTR},
		need: map[Need]float64{NeedCoarse: 0.5, NeedBundle: 0.6, NeedMisleading: 0.8}, answers: yesNo, binary: true,
		words: "Is the heart enlarged?", allow: calm,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.heartEnlarged(rng, a == 0) },
	},
	{
		name: "shift-side", capability: relationship, relevant: []string{rollout.Shift},
		need:    map[Need]float64{NeedCoarse: 0.3, NeedBundle: 0.3, NeedMisleading: 0.4},
		answers: bothSides, fillers: []string{"both sides", "upward", "downward"}, words: "To which side is the mediastinum shifted?",
		closed: "Is the mediastinum shifted to the right or left?", allow: calm,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.shift(rng, a) },
	},
	{
		name: "protocol-heart", capability: relationship, relevant: []string{rollout.CTR},
		need: map[Need]float64{NeedCoarse: 6.3, NeedLookup: 6.4}, answers: yesNo, binary: true,
		words: "Is the heart over the limit of protocol {code}?", allow: calm,
		arrange: func(p *plan, rng *rand.Rand, a int) { p.protocolHeart(rng, a == 0) },
	},
	protocolTemplate(followUp, diagnosis, "Protocol {code}: when is follow-up due?"),
	protocolTemplate(limit, relationship, "Protocol {code}: which CTR limit applies?"),
	protocolTemplate(reviewer, characterization, "Protocol {code}: who reviews the film?"),
	{
		name: reportName, capability: diagnosis, need: map[Need]float64{NeedCoarse: 1, NeedCrop: 1},
		arrange: func(p *plan, rng *rand.Rand, _ int) {}, allow: anything,
	},
}
