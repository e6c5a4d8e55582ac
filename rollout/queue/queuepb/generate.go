// Package queuepb holds the messages of the rollout queue as protobuf. The
// code is generated; package queue alone uses it.
package queuepb

//go:generate protoc --proto_path=. --go_out=. --go_opt=paths=source_relative queue.proto
