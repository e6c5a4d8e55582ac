package rollout

// Record writes down what the tool returned, as every caller of tools does it.
func (c *Call) Record(o Observation) {
	c.CacheHit = o.CacheHit
	switch {
	case o.Invalid:
		c.Status, c.Observation = CallInvalid, o.Text
	case o.Error != "":
		c.Status, c.Observation = CallError, o.Error
	default:
		c.Status, c.Observation = CallOK, o.Text
	}
}

// Admit names the measurements that turn 2 is shown under a gate mode, in the
// order of [Measurements].
func (b Bundle) Admit(gate GateMode) []string {
	var names []string
	for _, name := range Measurements {
		m, ok := b.Find(name)
		if ok && m.Computed && (gate == GateOff || gate == GateOn && m.Admitted) {
			names = append(names, name)
		}
	}
	return names
}
