// Columns and records of a SequenceExample and of a list of Examples, for the tests of columns and their fuzzing.
#pragma once

#include "fed.hpp"
#include "tensor_support.hpp"

namespace support {

inline dtf::ColumnSpec cast_to(dtf::ColumnSpec spec, dtf::Cast cast) {
    spec.cast = cast;
    return spec;
}

// A column of floats that a record may list as integers.
inline dtf::ColumnSpec mixed(dtf::ColumnSpec spec, dtf::Cast cast = dtf::Cast::none) {
    return cast_to(holding(dtf::Content::mixed, std::move(spec)), cast);
}

inline dtf::ColumnSpec with_default(dtf::ColumnSpec spec, std::vector<std::string> default_value) {
    spec.default_value = std::move(default_value);
    return spec;
}

inline dtf::ColumnSpec optional(dtf::ColumnSpec spec) {
    spec.optional = true;
    return spec;
}

// A column of a feature list, or of items.
inline dtf::ColumnSpec steps(dtf::ColumnSpec spec) {
    spec.list = true;
    return spec;
}

inline dtf::ColumnSpec tensor_spec(std::string_view key, dtf::DataType dtype, std::size_t item, Sizes shape) {
    dtf::ColumnSpec made = spec(key, dtf::Kind::bytes, dtf::ValueLayout::tensor);
    made.tensor = {static_cast<int>(dtype), item, std::move(shape)};
    return made;
}

// The same columns, but those with splits keep only the splits.
inline Specs counting(Specs specs) {
    for (dtf::ColumnSpec& one : specs) {
        const dtf::Column column(one);
        one.counted = one.content != dtf::Content::text && (column.has_rows() || column.stores_bytes());
    }
    return specs;
}

// A FeatureList message, of its steps' Feature messages.
inline std::string feature_list(std::initializer_list<std::string_view> features) {
    std::string list;
    for (const std::string_view feature : features) list += delimited(1, feature);
    return list;
}

inline std::string sequence_example(std::string_view context, std::string_view lists) {
    return delimited(1, context) + delimited(2, lists);
}

// A record of the items of a list of Examples, by the entries of each, and its context if it is not empty.
inline std::string example_list(std::initializer_list<std::string_view> items, std::string_view context = "") {
    std::string record;
    for (const std::string_view item : items) record += delimited(1, example(item));
    return context.empty() ? record : record + delimited(2, example(context));
}

template <class T>
std::string as_stored(std::initializer_list<T> values) {
    std::string bytes;
    for (const T value : values) bytes += little_endian(value);
    return bytes;
}

}  // namespace support
