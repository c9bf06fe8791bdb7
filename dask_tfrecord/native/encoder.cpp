// Python bindings of the encoder: fields, and the records made of them.
#include <nanobind/stl/string.h>

#include <utility>
#include <vector>

#include "binding.hpp"
#include "encode.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using binding::Bytes;
using binding::Integers;
using binding::OutputBytes;

namespace {

// Arguments of a field, and the arrays that it views.
struct PyField {
    dtf::Field field;
    Bytes values;
    std::optional<Integers> value_splits, step_splits, row_splits;
};

std::optional<dtf::Splits> view(const std::optional<Integers>& splits) {
    if (!splits) return std::nullopt;
    return dtf::Splits{splits->data(), splits->size()};
}

void make_field(PyField* self, const nb::bytes& key, dtf::Kind kind, const Bytes& values, bool list, std::size_t count,
                const nb::bytes& prefix, std::optional<Integers> value_splits, std::optional<Integers> step_splits,
                std::optional<Integers> row_splits) {
    dtf::Field field;
    field.key = binding::string_of(key);
    field.kind = kind;
    field.list = list;
    field.count = count;
    field.prefix = binding::string_of(prefix);
    field.values = values.data();
    field.nbytes = values.size();
    field.value_splits = view(value_splits);
    field.step_splits = view(step_splits);
    field.row_splits = view(row_splits);
    dtf::check_field(field);
    new (self) PyField{std::move(field), values, std::move(value_splits), std::move(step_splits),
                       std::move(row_splits)};
}

using Fields = nb::typed<nb::sequence, PyField>;

class PyEncoder : public binding::EncoderBinding<dtf::Encoder> {
public:
    PyEncoder(const Fields& items, std::size_t rows, dtf::Message message)
        : EncoderBinding(rows, [&](nb::list& kept) {
              std::vector<dtf::Field> fields;
              for (nb::handle item : items) {
                  fields.push_back(nb::cast<const PyField&>(item).field);
                  kept.append(item);
              }
              return dtf::Encoder(std::move(fields), rows, message);
          }) {}
};

}  // namespace

void binding::add_encoder(nb::module_& module) {
    nb::class_<PyField>(module, "Field", "Values of one key of the records, in flat arrays.")
        .def("__init__", &make_field, "key"_a, "kind"_a, "values"_a.noconvert(), nb::kw_only(), "list"_a = false,
             "count"_a = 1, "prefix"_a = nb::bytes("", 0), "value_splits"_a.noconvert() = nb::none(),
             "step_splits"_a.noconvert() = nb::none(), "row_splits"_a.noconvert() = nb::none());
    nb::class_<dtf::Encoded>(module, "Encoded", "Result of encoding records to a buffer.")
        .def_ro("records", &dtf::Encoded::records, "Number of records written.")
        .def_ro("nbytes", &dtf::Encoded::bytes, "Bytes written.")
        .def_ro("need", &dtf::Encoded::need, "Buffer size that the next record needs; 0 after the last record.");
    nb::class_<PyEncoder>(module, "Encoder", "Encodes fields to framed records.")
        .def(nb::init<const Fields&, std::size_t, dtf::Message>(), "fields"_a, "rows"_a,
             "message"_a = dtf::Message::example,
             "Validate the fields and copy their splits; the arrays of values are kept, not copied.")
        .def("encode", &PyEncoder::encode, "first"_a, "out"_a.noconvert(),
             "Write as many records to `out` as fit, from row `first` on.\n\n"
             "Raises RuntimeError if another thread changed the values meanwhile; `out` is then undefined.");
}
