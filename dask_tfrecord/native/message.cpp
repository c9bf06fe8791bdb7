// Python bindings of the decoder and the encoder of any message: field tables, records, and columns.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "binding.hpp"
#include "message_decode.hpp"
#include "message_encode.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using binding::Bytes;
using binding::ExclusiveUse;
using binding::Integers;
using binding::OutputBytes;

namespace {

void make_field(dtf::MessageField* self, std::uint32_t number, dtf::FieldType type, bool repeated, bool packed,
                bool required, int column, int message, int splits, int presence, int oneof,
                const nb::bytes& default_value, bool utf8, bool is_map,
                std::optional<std::vector<std::int32_t>> numbers) {
    dtf::MessageField field;
    field.number = number;
    field.type = type;
    field.repeated = repeated;
    field.packed = packed;
    field.required = required;
    field.column = column;
    field.message = message;
    field.splits = splits;
    field.presence = presence;
    field.oneof = oneof;
    field.default_value = binding::string_of(default_value);
    field.utf8 = utf8;
    field.is_map = is_map;
    field.numbers = std::move(numbers);
    new (self) dtf::MessageField(std::move(field));
}

void make_table(dtf::MessageTable* self, const nb::typed<nb::sequence, dtf::MessageField>& fields,
                std::vector<int> oneofs) {
    dtf::MessageTable table;
    for (nb::handle field : fields) table.fields.push_back(nb::cast<const dtf::MessageField&>(field));
    table.oneofs = std::move(oneofs);
    new (self) dtf::MessageTable(std::move(table));
}

using Tables = nb::typed<nb::sequence, dtf::MessageTable>;

std::vector<dtf::MessageTable> tables_of(const Tables& items) {
    std::vector<dtf::MessageTable> tables;
    for (nb::handle item : items) tables.push_back(nb::cast<const dtf::MessageTable&>(item));
    return tables;
}

class PyMessageDecoder : public binding::DecoderBinding<dtf::MessageDecoder> {
public:
    PyMessageDecoder(const Tables& tables, std::size_t ncolumns, std::size_t nsplits, bool check_crc,
                     const std::vector<std::size_t>& counted)
        : DecoderBinding("MessageDecoder", tables_of(tables), ncolumns, nsplits, check_crc, counted) {}

    std::size_t feed_values(const Bytes& values, const Integers& splits) {
        const ExclusiveUse use(busy_);
        begin_feed();
        if (splits.size() == 0) throw nb::value_error("splits must not be empty");
        return binding::without_gil([&] {
            std::size_t row = 0;
            for (; row + 1 < splits.size(); ++row) {
                const std::int64_t begin = splits.data()[row], end = splits.data()[row + 1];
                if (begin < 0 || begin > end || static_cast<std::size_t>(end) > values.size()) {
                    throw std::invalid_argument("splits must ascend within the values");
                }
                const std::size_t size = static_cast<std::size_t>(end - begin);
                if (!decoder_.take(dtf::Cursor(values.data() + begin, size))) break;
            }
            return row;
        });
    }

    std::uint64_t unknown_fields() {
        const ExclusiveUse use(busy_);
        return decoder_.unknown_fields();
    }

    binding::ColumnOutput take_output(std::size_t index) {
        const ExclusiveUse use(busy_);
        dtf::MessageColumn& column = taken(index);
        if (!column.bytes) column.slots.truncate(column.list->rows * column.width);
        return {column.counted ? nb::none() : binding::kept_values(column.values()),
                binding::splits_of(column.bytes, column.value_splits), nb::none(), nb::none(), nb::none()};
    }

    nb::object take_splits(std::size_t index) {
        const ExclusiveUse use(busy_);
        if (index >= decoder_.splits().size()) throw nb::index_error("index of splits out of range");
        taken_ = true;
        if (!taken_splits_.insert(index).second) throw nb::value_error("an output can be taken only once");
        return binding::array_of<std::int64_t>(decoder_.splits()[index]->splits);
    }

private:
    std::unordered_set<std::size_t> taken_splits_;
};

using Columns = nb::typed<nb::sequence, Bytes>;
using ValueSplits = nb::typed<nb::sequence, std::optional<Integers>>;
using RowSplits = nb::typed<nb::sequence, Integers>;

// Return an item of a sequence as an array, without a conversion, which would copy it.
template <class T>
T array_from(nb::handle item, const char* error) {
    T array;
    if (!nb::try_cast(item, array, false)) throw nb::type_error(error);
    return array;
}

dtf::Splits splits_of(nb::handle item, nb::list& kept) {
    kept.append(item);
    const auto array = array_from<Integers>(item, "splits must be contiguous arrays of int64");
    return {array.data(), array.size()};
}

std::vector<dtf::MessageValues> values_of(const Columns& columns, const ValueSplits& value_splits, nb::list& kept) {
    std::vector<dtf::MessageValues> values;
    for (nb::handle item : columns) {
        kept.append(item);
        const auto column = array_from<Bytes>(item, "columns must hold contiguous arrays of uint8");
        values.push_back({column.data(), column.size(), std::nullopt});
    }
    if (nb::len(value_splits) != values.size()) throw nb::value_error("value_splits needs an item for each column");
    std::size_t index = 0;
    for (nb::handle item : value_splits) {
        if (!item.is_none()) values[index].value_splits = splits_of(item, kept);
        ++index;
    }
    return values;
}

class PyMessageEncoder : public binding::EncoderBinding<dtf::MessageEncoder> {
public:
    PyMessageEncoder(const Tables& tables, const Columns& columns, const ValueSplits& value_splits,
                     const RowSplits& row_splits, std::size_t rows)
        : EncoderBinding(rows, [&](nb::list& kept) {
              const std::vector<dtf::MessageValues> values = values_of(columns, value_splits, kept);
              std::vector<dtf::Splits> splits;
              for (nb::handle item : row_splits) splits.push_back(splits_of(item, kept));
              return dtf::MessageEncoder(tables_of(tables), values, splits, rows);
          }) {}
};

void add_tables(nb::module_& module) {
    using dtf::FieldType;
    nb::enum_<FieldType>(module, "FieldType", "Type of a protobuf field; the numbers of FieldDescriptorProto.Type.")
        .value("DOUBLE", FieldType::float64)
        .value("FLOAT", FieldType::float32)
        .value("INT64", FieldType::int64)
        .value("UINT64", FieldType::uint64)
        .value("INT32", FieldType::int32)
        .value("FIXED64", FieldType::fixed64)
        .value("FIXED32", FieldType::fixed32)
        .value("BOOL", FieldType::boolean)
        .value("STRING", FieldType::string)
        .value("GROUP", FieldType::group)
        .value("MESSAGE", FieldType::message)
        .value("BYTES", FieldType::bytes)
        .value("UINT32", FieldType::uint32)
        .value("ENUM", FieldType::enumeration)
        .value("SFIXED32", FieldType::sfixed32)
        .value("SFIXED64", FieldType::sfixed64)
        .value("SINT32", FieldType::sint32)
        .value("SINT64", FieldType::sint64);
    nb::class_<dtf::MessageField>(module, "MessageField", "One field of a message type: where its values go.")
        .def("__init__", &make_field, "number"_a, "type"_a, nb::kw_only(), "repeated"_a = false, "packed"_a = false,
             "required"_a = false, "column"_a = -1, "message"_a = -1, "splits"_a = -1, "presence"_a = -1,
             "oneof"_a = -1, "default"_a = nb::bytes("", 0), "utf8"_a = false, "is_map"_a = false,
             "numbers"_a = nb::none(),
             "Describe a field; indices are -1 where there is none.\n\n"
             "`column` is the output of the values, or of the bytes of a message. `message` is the "
             "table\nof a message whose fields are decoded, or, without any outputs, only walked. `splits` is the output "
             "of the row\nsplits of a repeated field, `presence` of bools, `oneof` an index of the table. `default` "
             "holds the bytes of\nthe stored number, or of the text; empty means zero or empty. Of a map, the entry "
             "table needs the key, field 1,\nwith or without a column. `numbers` are the ascending numbers of a closed "
             "enum: others are unknown fields.\n\n"
             "A field without indices is skipped by its wire type. A field that the table lacks counts as unknown. "
             "All\nmembers of a oneof have to be in the table, decoded or not. `packed` and `required` matter to the "
             "encoder only.");
    nb::class_<dtf::MessageTable>(module, "MessageTable", "Fields of one place in the tree of a message type.")
        .def("__init__", &make_table, "fields"_a, "oneofs"_a = nb::tuple(),
             "Describe a place; `oneofs` are the outputs (int32) of the number of the field that is set (or 0), "
             "or -1.");
}

void add_problem(nb::module_& module) {
    nb::class_<dtf::MessageProblem>(module, "MessageProblem", "Content that the message decoder refused.")
        .def_ro("fault", &dtf::MessageProblem::fault, "`Fault.MALFORMED`, `Fault.UTF8` or `Fault.FULL`.")
        .def_ro("table", &dtf::MessageProblem::table, "Index of the table of the innermost message, or -1.")
        .def_ro("field", &dtf::MessageProblem::field, "Index of the field in the table, or -1.")
        .def_ro("number", &dtf::MessageProblem::number, "Number of the field on the wire, or 0.")
        .def_ro("column", &dtf::MessageProblem::column, "Index of the column that is full, or -1.")
        .def_ro("offset", &dtf::MessageProblem::offset, "Byte in the record where the field starts.")
        .def_ro("expected", &dtf::MessageProblem::expected, "What the decoder expected.")
        .def_ro("found", &dtf::MessageProblem::found, "What the record has instead.");
}

void add_message_decoder(nb::module_& module) {
    nb::class_<PyMessageDecoder> decoder(module, "MessageDecoder", "Decodes records of any message type to columns.");
    decoder
        .def(nb::init<const Tables&, std::size_t, std::size_t, bool, const std::vector<std::size_t>&>(), "tables"_a,
             "ncolumns"_a, "nsplits"_a, "check_crc"_a, "counted"_a = nb::tuple(),
             "Validate the tables: a tree, the first is the root, each before the tables of its messages.\n\n"
             "Each column and each splits output has one field, oneof or presence. `counted` are columns of bytes "
             "values, or\nof repeated numbers, whose values are counted but not kept.")
        .def("set_output", &PyMessageDecoder::set_output, "column"_a, "memory"_a.noconvert(),
             "Decode a column of numbers with one value per record to `memory`, which holds all rows.")
        .def("offer_output", &PyMessageDecoder::offer_output, "column"_a, "memory"_a.noconvert(),
             "Decode the values of any other column to `memory`, or to memory of the decoder once they do not fit.");
    binding::add_feeds(decoder);
    decoder
        .def("feed_values", &PyMessageDecoder::feed_values, "values"_a.noconvert(), "splits"_a.noconvert(),
             "Decode the messages ``values[splits[i]:splits[i + 1]]``, which are bytes values of other records.\n\n"
             "Returns the number of messages decoded: all of them, or those before the one that `problem` describes.")
        .def("preallocate", &PyMessageDecoder::preallocate, "factor"_a,
             "Allocate memory for about `factor` times the values decoded so far.")
        .def("set_memory_limit", &PyMessageDecoder::set_memory_limit, "nbytes"_a,
             "Refuse records that would grow the memory of a column beyond `nbytes`: `Fault.FULL`.")
        .def("problem", &PyMessageDecoder::problem, "Return why the last record was refused, after `Stop.FEATURE`.")
        .def_prop_ro("unknown_fields", &PyMessageDecoder::unknown_fields,
                     "Number of fields in the decoded records that the tables lack, or whose wire type or number does not "
                     "fit.")
        .def("take_output", &PyMessageDecoder::take_output, "column"_a,
             "Return the arrays of a column and give up their memory; records can no longer be fed.")
        .def("take_splits", &PyMessageDecoder::take_splits, "splits"_a,
             nb::sig("def take_splits(self, splits: int) -> numpy.typing.NDArray[numpy.int64]"),
             "Return the row splits of a repeated field by the items of the repeated message around it, or by records.");
}

void add_message_encoder(nb::module_& module) {
    nb::class_<PyMessageEncoder>(module, "MessageEncoder",
                                 "Encodes columns of any message type to framed records, as protobuf serialises "
                                 "deterministically.")
        .def(nb::init<const Tables&, const Columns&, const ValueSplits&, const RowSplits&, std::size_t>(), "tables"_a,
             "columns"_a, "value_splits"_a, "splits"_a, "rows"_a,
             "Validate the arrays, which are those that a decoder of the same tables gives: bytes of values and their "
             "splits.\n\n"
             "Fields are written in the order of the table. A field with a presence output is written where it is "
             "present,\na member of a oneof with an output where it is set. Another scalar is written unless it equals "
             "its default, or\nif it is required; another message unless it is empty, or holds nothing but defaults of "
             "required fields. Map\nentries are sorted by key.")
        .def("encode", &PyMessageEncoder::encode, "first"_a, "out"_a.noconvert(),
             "Write as many records to `out` as fit, from row `first` on.\n\n"
             "Raises ValueError if a string that has to be UTF-8 is not.");
}

}  // namespace

void binding::add_messages(nb::module_& module) {
    add_tables(module);
    add_problem(module);
    add_message_decoder(module);
    add_message_encoder(module);
}
