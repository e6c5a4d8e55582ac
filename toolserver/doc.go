// Package toolserver holds the tools that a policy may call, and the gated
// measurements that are computed beside it.
//
// A [Server] answers in process; [Serve] puts it behind NATS, and a [Client]
// there behaves as the server does; [NewMCP] offers it to agents of any kind by
// the Model Context Protocol. Three auxiliary tools are the policy's to
// call: region_parse, roi_crop and evidence_lookup. The measurement bundle is
// not: it is computed for every study, and its validity gate decides what may
// be shown. With Config.Extended there are further tools, for agents beside the
// recipe; those that need a model ask a server for it (package backend), or say
// that none is configured.
//
// Tools see pixels, arguments and image metadata. No type in this package can
// carry a question's options, an answer, or a phantom's truth, so removing
// those changes no result. The same pixels and arguments give the same bytes,
// a model server's answers apart.
//
// Outcomes are kept apart: a policy's mistake is an [rollout.Observation] with
// Invalid set; a tool's own failure, a panic included, is one with Error set;
// a deadline, a lost server or an unreadable image ([ImageError]) is a Go
// error. What the tools say of phantoms is no clinical statement, and neither
// is the built-in knowledge base.
package toolserver
