// Python bindings of the decoder: column specifications, the records fed to it, and the output of each column.
#include <nanobind/stl/string.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "binding.hpp"
#include "example.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using binding::array_of;
using binding::Bytes;
using binding::ColumnOutput;
using binding::ExclusiveUse;
using binding::Integers;
using binding::kept_values;
using binding::OutputBytes;
using binding::splits_of;

namespace {

void check(const dtf::ColumnSpec& spec) {
    using dtf::Content;
    using dtf::Kind;
    using dtf::ValueLayout;
    const bool fixed = spec.layout == ValueLayout::fixed;
    const bool encoded = spec.layout == ValueLayout::raw || spec.layout == ValueLayout::tensor;
    if ((encoded || spec.content == Content::text) && spec.kind != Kind::bytes) {
        throw nb::value_error("raw, tensor and text columns need Kind.BYTES");
    }
    if (spec.content == Content::text && encoded) throw nb::value_error("text columns have a fixed or ragged layout");
    if (spec.count > dtf::most_values) throw nb::value_error("count exceeds 2**59");
    if (spec.swap == 0 || (spec.layout == ValueLayout::raw && spec.count % spec.swap != 0)) {
        throw nb::value_error("the count of a raw column must be a multiple of swap");
    }
    if (spec.layout == ValueLayout::ragged && spec.count == 0) throw nb::value_error("ragged columns need count >= 1");
    const bool empty = spec.layout == ValueLayout::skipped || spec.layout == ValueLayout::unset;
    if (spec.list && !fixed && spec.layout != ValueLayout::ragged && !empty) {
        throw nb::value_error("feature lists have a fixed or ragged layout");
    }
    if (spec.cast != dtf::Cast::none) {
        const bool integers = spec.cast < dtf::Cast::float16;
        if (!fixed && spec.layout != ValueLayout::ragged) throw nb::value_error("only fixed and ragged columns cast");
        if (spec.kind != (integers ? Kind::int64 : Kind::floats)) {
            throw nb::value_error("integer casts need Kind.INT64, float casts Kind.FLOATS");
        }
    }
    const bool exact = spec.cast == dtf::Cast::none || spec.cast == dtf::Cast::float64;
    if (spec.content == Content::booleans && spec.layout != ValueLayout::raw) {
        throw nb::value_error("only raw columns hold booleans");
    }
    if (spec.content == Content::mixed && !(spec.kind == Kind::floats && exact && (fixed || spec.layout == ValueLayout::ragged))) {
        throw nb::value_error("mixed columns are fixed or ragged, and hold float32 or float64");
    }
}

void check_default_value(const dtf::ColumnSpec& spec) {
    if (spec.default_value.empty()) return;
    const dtf::Column column(spec);
    if (spec.layout != dtf::ValueLayout::fixed) {
        throw nb::value_error("only fixed columns have a default value");
    }
    if (column.stores_bytes() ? spec.default_value.size() != spec.count
                              : spec.default_value.size() != 1 || spec.default_value[0].size() != column.slot()) {
        throw nb::value_error("the default value must hold as many values as a record or item");
    }
}

void check_counted(const dtf::ColumnSpec& spec) {
    if (!spec.counted) return;
    const dtf::Column column(spec);
    if (spec.content == dtf::Content::text || !(column.has_rows() || column.stores_bytes())) {
        throw nb::value_error("only columns with splits that are not text can be counted");
    }
}

void check_tensor(const dtf::TensorSpec& spec) {
    std::size_t left = dtf::most_values;
    if (spec.item > 16) throw nb::value_error("tensor_item exceeds 16 bytes");
    for (const std::int64_t size : spec.shape) {
        if (size < -1) throw nb::value_error("sizes of tensor_shape must be non-negative, or -1 for an open size");
        if (size > 0) left /= static_cast<std::size_t>(size);
    }
    if (left == 0) throw nb::value_error("tensor_shape holds more than 2**59 elements");
}

void make_column_spec(dtf::ColumnSpec* self, const nb::bytes& key, dtf::Kind kind, dtf::ValueLayout layout,
                      std::size_t count, std::size_t swap, dtf::Content content, bool list, bool optional,
                      bool counted, dtf::Cast cast, const nb::typed<nb::sequence, nb::bytes>& default_value,
                      std::optional<dtf::DataType> tensor_dtype, std::size_t tensor_item,
                      const nb::typed<nb::sequence, int>& tensor_shape) {
    dtf::ColumnSpec spec;
    spec.key = binding::string_of(key);
    spec.kind = kind;
    spec.layout = layout;
    spec.count = count;
    spec.swap = swap;
    spec.content = content;
    spec.list = list;
    spec.optional = optional;
    spec.counted = counted;
    spec.cast = cast;
    for (nb::handle item : default_value) {
        nb::bytes value;
        if (!nb::try_cast(item, value)) throw nb::type_error("default_value must hold bytes");
        spec.default_value.push_back(binding::string_of(value));
    }
    if (tensor_dtype) spec.tensor.dtype = static_cast<int>(*tensor_dtype);
    spec.tensor.item = tensor_item;
    for (nb::handle size : tensor_shape) {
        spec.tensor.shape.push_back(0);
        if (!nb::try_cast(size, spec.tensor.shape.back())) throw nb::type_error("tensor_shape must hold integers");
    }
    check(spec);
    check_default_value(spec);
    check_counted(spec);
    check_tensor(spec.tensor);
    new (self) dtf::ColumnSpec(std::move(spec));
}

using ColumnSpecs = nb::typed<nb::sequence, dtf::ColumnSpec>;

std::vector<dtf::ColumnSpec> column_specs(const ColumnSpecs& items) {
    std::vector<dtf::ColumnSpec> specs;
    std::unordered_set<std::string> keys[2];
    for (nb::handle item : items) {
        specs.push_back(nb::cast<dtf::ColumnSpec>(item));
        if (!keys[specs.back().list].insert(specs.back().key).second) {
            throw nb::value_error("two columns have the same key");
        }
    }
    return specs;
}

class PyDecoder : public binding::DecoderBinding<dtf::Decoder> {
public:
    PyDecoder(const ColumnSpecs& columns, bool check_crc, bool closed, dtf::Message message)
        : DecoderBinding("Decoder", column_specs(columns), check_crc, closed, message) {}

    ColumnOutput take_output(std::size_t index) {
        const ExclusiveUse use(busy_);
        dtf::Column& column = taken(index);
        return {kept_values(column.values), splits_of(column.stores_bytes(), column.value_splits), splits_of(column.has_steps(), column.step_splits),
                splits_of(column.has_rows(), column.row_splits), splits_of(column.has_shapes(), column.shapes)};
    }
};

// Serialized tensors of a list: the arrays of a column, and the problem of the first tensor that does not fit, whose
// step is its number.
nb::typed<nb::tuple, ColumnOutput, dtf::Problem> read_tensors(const Bytes& values, const Integers& splits,
                                                              const dtf::ColumnSpec& spec,
                                                              std::optional<OutputBytes> out, std::size_t most) {
    if (spec.layout != dtf::ValueLayout::tensor) throw nb::value_error("read_tensors needs the layout TENSOR");
    if (splits.size() == 0) throw nb::value_error("splits must not be empty");
    dtf::Column column(spec);
    const std::size_t rows = splits.size() - 1;
    if (out) {
        const std::size_t slot = column.slot();
        const bool fits = slot == 0 ? out->size() == 0 : out->size() % slot == 0 && out->size() / slot == rows;
        if (column.stores_bytes() || column.has_rows() || !fits) {
            throw nb::value_error("out must have the size of all tensors, which are numbers of one known shape");
        }
        column.values = dtf::Buffer(out->data(), out->size());
    }
    dtf::TensorProblem found;
    const std::size_t read = binding::without_gil([&] {
        return dtf::read_tensors(dtf::Cursor(values.data(), values.size()), splits.data(), rows, spec.tensor,
                                 column.values, column.stores_bytes() ? &column.value_splits : nullptr,
                                 column.has_shapes() ? &column.row_splits : nullptr,
                                 column.has_shapes() ? &column.shapes : nullptr, found, most);
    });
    dtf::Problem problem;
    if (read != rows) {
        problem.fault = found.fault == dtf::TensorFault::full ? dtf::Fault::full : dtf::Fault::tensor;
        problem.step = static_cast<std::int64_t>(read);
        problem.found = static_cast<std::uint64_t>(found.dtype);
        problem.text = found.text;
    }
    const ColumnOutput output{out ? nb::none() : array_of<std::uint8_t>(column.values),
                              splits_of(column.stores_bytes(), column.value_splits), nb::none(),
                              splits_of(column.has_rows(), column.row_splits),
                              splits_of(column.has_shapes(), column.shapes)};
    return nb::make_tuple(output, problem);
}

void add_results(nb::module_& module) {
    nb::class_<dtf::Problem>(module, "Problem", "Content that the decoder refused.")
        .def_ro("fault", &dtf::Problem::fault, "What is wrong.")
        .def_ro("column", &dtf::Problem::column, "Index of the column, or -1.")
        .def_ro("step", &dtf::Problem::step, "Step of a feature list, item of a list of Examples, or -1.")
        .def_ro("found", &dtf::Problem::found, "A Kind, count, size or value, depending on the fault.")
        .def_prop_ro(
            "text", [](const dtf::Problem& problem) { return nb::bytes(problem.text.data(), problem.text.size()); },
            "Key of an unknown feature, or description of a tensor; UTF-8.");
    const auto rv = nb::rv_policy::reference;
    nb::class_<ColumnOutput>(module, "ColumnOutput", "Decoded rows of one column.")
        .def_ro("values", &ColumnOutput::values, rv,
                nb::sig("def values(self) -> numpy.typing.NDArray[numpy.uint8] | None"),
                "Bytes of the values; None if they are in an output buffer of the caller, or only counted.")
        .def_ro("value_splits", &ColumnOutput::value_splits, rv,
                nb::sig("def value_splits(self) -> numpy.typing.NDArray[numpy.int64] | None"),
                "Splits of bytes values.")
        .def_ro("step_splits", &ColumnOutput::step_splits, rv,
                nb::sig("def step_splits(self) -> numpy.typing.NDArray[numpy.int64] | None"),
                "Splits of the values by the steps of a ragged feature list, or by items.")
        .def_ro("row_splits", &ColumnOutput::row_splits, rv,
                nb::sig("def row_splits(self) -> numpy.typing.NDArray[numpy.int64] | None"),
                "Splits of the values, or the steps, by records.")
        .def_ro("shapes", &ColumnOutput::shapes, rv,
                nb::sig("def shapes(self) -> numpy.typing.NDArray[numpy.int64] | None"),
                "Shapes of the tensors, flattened.");
}

}  // namespace

void binding::add_decoder(nb::module_& module) {
    add_results(module);
    nb::class_<dtf::ColumnSpec>(module, "ColumnSpec", "One key of the records: kind and layout of its values.")
        .def("__init__", &make_column_spec, "key"_a, "kind"_a, "layout"_a, nb::kw_only(), "count"_a = 1, "swap"_a = 1,
             "content"_a = dtf::Content::any, "list"_a = false, "optional"_a = false, "counted"_a = false,
             "cast"_a = dtf::Cast::none, "default_value"_a = nb::tuple(), "tensor_dtype"_a = nb::none(),
             "tensor_item"_a = 0, "tensor_shape"_a = nb::tuple());
    module.def("read_tensors", &read_tensors, "values"_a.noconvert(), "splits"_a.noconvert(), "spec"_a,
               "out"_a.noconvert().none(), "limit"_a,
               "Read a TensorProto from each ``values[splits[i]:splits[i + 1]]``, to `out` if it is given.\n\n"
               "`limit` is the maximum memory of the values in bytes. The step of the problem is the number of the "
               "tensor.");
    nb::class_<PyDecoder> decoder(module, "Decoder", "Decodes records to columns.");
    decoder
        .def(nb::init<const ColumnSpecs&, bool, bool, dtf::Message>(), "columns"_a, "check_crc"_a, "closed"_a,
             "message"_a = dtf::Message::example)
        .def("set_output", &PyDecoder::set_output, "column"_a, "memory"_a.noconvert(),
             "Decode a dense column to `memory`, which holds all rows.")
        .def("offer_output", &PyDecoder::offer_output, "column"_a, "memory"_a.noconvert(),
             "Decode the values of a ragged column to `memory`, or to memory of the decoder once they do not fit.");
    binding::add_feeds(decoder);
    decoder
        .def("preallocate", &PyDecoder::preallocate, "factor"_a,
             "Allocate memory for about `factor` times the values decoded so far.")
        .def("set_memory_limit", &PyDecoder::set_memory_limit, "nbytes"_a,
             "Refuse tensors and default values that would grow the memory of a column beyond `nbytes`: `Fault.FULL`.")
        .def("problem", &PyDecoder::problem, "Return why the last record was refused, after `Stop.FEATURE`.")
        .def("take_output", &PyDecoder::take_output, "column"_a,
             "Return the arrays of a column and give up their memory; records can no longer be fed.");
}
