// Package columnar writes samples and trajectories as Parquet, and batches as
// Arrow IPC files for a learner in another process.
//
// It is the only package that imports Arrow. Files are self-describing; no
// column is dictionary-encoded at the Arrow level, so that any reader maps
// them without copying.
package columnar

import (
	"encoding/json"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// A column says how one field of T is stored.
type column[T any] struct {
	field arrow.Field
	put   func(array.Builder, T)
}

// columns is a table's layout.
type columns[T any] []column[T]

func (c columns[T]) schema() *arrow.Schema {
	fields := make([]arrow.Field, len(c))
	for i := range c {
		fields[i] = c[i].field
	}
	return arrow.NewSchema(fields, nil)
}

// record returns the rows as one record, which the caller releases.
func (c columns[T]) record(schema *arrow.Schema, rows []T) arrow.Record {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Reserve(len(rows))
	for i := range c {
		to := b.Field(i)
		for _, row := range rows {
			c[i].put(to, row)
		}
	}
	return b.NewRecord()
}

// A value is an element type of a column.
type value interface {
	string | bool | uint8 | int32 | int64 | float32 | float64
}

// appender is a builder of one element type.
type appender[V any] interface{ Append(V) }

// scalars is a builder that takes many values at once.
type scalars[V any] interface {
	AppendValues(v []V, valid []bool)
}

func typeOf[V value]() arrow.DataType {
	switch any(*new(V)).(type) {
	case string:
		return arrow.BinaryTypes.String
	case bool:
		return arrow.FixedWidthTypes.Boolean
	case uint8:
		return arrow.PrimitiveTypes.Uint8
	case int32:
		return arrow.PrimitiveTypes.Int32
	case int64:
		return arrow.PrimitiveTypes.Int64
	case float32:
		return arrow.PrimitiveTypes.Float32
	}
	return arrow.PrimitiveTypes.Float64
}

// one stores a single value, never null.
func one[V value, T any](name string, get func(T) V) column[T] {
	return column[T]{
		arrow.Field{Name: name, Type: typeOf[V]()},
		func(b array.Builder, row T) { b.(appender[V]).Append(get(row)) },
	}
}

// maybe stores a value or null.
func maybe[V value, T any](name string, get func(T) (V, bool)) column[T] {
	return column[T]{
		arrow.Field{Name: name, Type: typeOf[V](), Nullable: true},
		func(b array.Builder, row T) {
			if v, ok := get(row); ok {
				b.(appender[V]).Append(v)
			} else {
				b.AppendNull()
			}
		},
	}
}

// many stores a list of values; nil and empty are the same.
func many[V value, T any](name string, get func(T) []V) column[T] {
	item := arrow.Field{Name: "item", Type: typeOf[V]()}
	return column[T]{
		arrow.Field{Name: name, Type: arrow.ListOfField(item)},
		func(b array.Builder, row T) { appendList(b, get(row)) },
	}
}

func appendList[V value](b array.Builder, values []V) {
	list := b.(*array.ListBuilder)
	list.Append(true)
	list.ValueBuilder().(scalars[V]).AppendValues(values, nil)
}

// document stores v as JSON text, for what people read and nobody filters by.
func document[T any](name string, get func(T) any) column[T] {
	return one(name, func(row T) string {
		text, err := json.Marshal(get(row))
		if err != nil {
			panic(fmt.Sprintf("columnar: column %s: %v", name, err)) // plain data always encodes
		}
		return string(text)
	})
}

// each maps a slice.
func each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = f(a)
	}
	return out
}
