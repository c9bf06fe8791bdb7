// The Python face of the native core: checks arguments, lets go of the GIL once per block, hands out arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <unordered_set>

#include "encode.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void add_rows(nb::module_& module);    // rows.cpp
void add_resync(nb::module_& module);  // resync.cpp

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Splits = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::tuple;

// Sizes in bytes are computed from counts, and stay far from wrapping.
constexpr std::size_t most_values = std::size_t{1} << 59;

void check_range(const Bytes& buffer, std::size_t begin, std::size_t end) {
    if (begin > end || end > buffer.size()) throw nb::index_error("the range lies outside of the buffer");
}

Result result(const dtf::Walk& walk) {
    return nb::make_tuple(walk.records, walk.consumed, static_cast<int>(walk.stop), walk.need);
}

std::uint64_t limit_of(std::int64_t limit) {
    return limit < 0 ? UINT64_MAX : static_cast<std::uint64_t>(limit);
}

Result scan(const Bytes& buffer, std::size_t begin, std::size_t end, std::int64_t limit, bool check_crc) {
    check_range(buffer, begin, end);
    dtf::Walk walk;
    {
        nb::gil_scoped_release released;
        walk = dtf::Framing(check_crc).scan(buffer.data() + begin, end - begin, limit_of(limit));
    }
    return result(walk);
}

std::int64_t find_header(const Bytes& buffer, std::size_t begin, std::size_t end, std::uint64_t room) {
    check_range(buffer, begin, end);
    nb::gil_scoped_release released;
    return dtf::Framing(true).find(buffer.data() + begin, end - begin, room);
}

template <class T>
nb::object array(dtf::Buffer& buffer) {
    const std::size_t size = buffer.size() / sizeof(T);
    std::uint8_t* memory = buffer.release();
    nb::capsule owner(memory, [](void* pointer) noexcept { std::free(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(memory, {size}, owner));
}

void check(const dtf::ColumnSpec& spec) {
    using dtf::Kind;
    using dtf::Layout;
    const bool fixed = spec.layout == Layout::fixed;
    const bool encoded = spec.layout == Layout::raw || spec.layout == Layout::tensor;
    const bool located = spec.layout == Layout::located;
    if (spec.kind < Kind::none || spec.kind > Kind::int64) throw nb::value_error("no such kind");
    if (spec.layout < Layout::fixed || spec.layout > Layout::located) throw nb::value_error("no such layout");
    if (spec.cast < dtf::Cast::none || spec.cast > dtf::Cast::float64) throw nb::value_error("no such cast");
    if ((encoded || spec.text) && spec.kind != Kind::bytes) throw nb::value_error("raw values and text are bytes");
    if (spec.text && (encoded || located)) throw nb::value_error("raw values are no text");
    if (located && (spec.kind == Kind::int64 || spec.kind == Kind::none || spec.count == 0)) {
        throw nb::value_error("what is located are floats or bytes, one or more");
    }
    if (spec.count > most_values) throw nb::value_error("no record holds so many values");
    if (spec.swap == 0 || (spec.layout == Layout::raw && spec.count % spec.swap != 0)) {
        throw nb::value_error("a raw value is a whole number of items");
    }
    if (spec.layout == Layout::ragged && spec.count == 0) throw nb::value_error("rows of no values");
    if (spec.list && !fixed && spec.layout != Layout::ragged && spec.layout != Layout::skipped) {
        throw nb::value_error("steps of a feature list are fixed or ragged");
    }
    if (spec.cast != dtf::Cast::none) {
        const bool integers = spec.cast < dtf::Cast::float16;
        if (!fixed && spec.layout != Layout::ragged) throw nb::value_error("only lists of numbers are cast");
        if (spec.kind != (integers ? Kind::int64 : Kind::floats)) throw nb::value_error("another kind is cast to that");
    }
}

void check_fallback(const dtf::ColumnSpec& spec) {
    if (spec.fallback.empty()) return;
    const dtf::Column column(spec);
    if (spec.layout != dtf::Layout::fixed || spec.list) throw nb::value_error("fixed features fall back");
    if (column.stores_bytes() ? spec.fallback.size() != spec.count
                              : spec.fallback.size() != 1 || spec.fallback[0].size() != column.slot()) {
        throw nb::value_error("a record falls back to as many values as it should have");
    }
}

void check_counted(const dtf::ColumnSpec& spec) {
    if (!spec.counted) return;
    const dtf::Column column(spec);
    if (spec.text || !(column.has_rows() || column.stores_bytes())) {
        throw nb::value_error("what is counted has splits, and is no text");
    }
}

void check_tensor(const dtf::TensorSpec& spec) {
    std::size_t left = most_values;
    if (spec.item > 16) throw nb::value_error("no dtype has such items");
    for (const std::int64_t size : spec.shape) {
        if (size < -1) throw nb::value_error("a size is -1 where it is open");
        if (size > 0) left /= static_cast<std::size_t>(size);
    }
    if (left == 0) throw nb::value_error("no record holds so many values");
}

dtf::ColumnSpec column_spec(const nb::bytes& key, int kind, int layout, std::size_t count, std::size_t swap, bool text,
                            bool boolean, bool list, bool optional, bool counted, int cast,
                            const nb::sequence& fallback, int tensor_dtype, std::size_t tensor_item,
                            const nb::sequence& tensor_shape) {
    dtf::ColumnSpec spec;
    spec.key.assign(key.c_str(), key.size());
    spec.kind = static_cast<dtf::Kind>(kind);
    spec.layout = static_cast<dtf::Layout>(layout);
    spec.count = count;
    spec.swap = swap;
    spec.text = text;
    spec.boolean = boolean;
    spec.list = list;
    spec.optional = optional;
    spec.counted = counted;
    spec.cast = static_cast<dtf::Cast>(cast);
    for (nb::handle item : fallback) {
        nb::bytes part;
        if (!nb::try_cast(item, part)) throw nb::type_error("a fallback is bytes");
        spec.fallback.emplace_back(part.c_str(), part.size());
    }
    spec.tensor.dtype = tensor_dtype;
    spec.tensor.item = tensor_item;
    for (nb::handle size : tensor_shape) {
        spec.tensor.shape.push_back(0);
        if (!nb::try_cast(size, spec.tensor.shape.back())) throw nb::type_error("a size is an integer");
    }
    check(spec);
    check_fallback(spec);
    check_counted(spec);
    check_tensor(spec.tensor);
    return spec;
}

std::vector<dtf::ColumnSpec> column_specs(const nb::sequence& items) {
    std::vector<dtf::ColumnSpec> specs;
    std::unordered_set<std::string> keys[2];
    for (nb::handle item : items) {
        specs.push_back(nb::cast<dtf::ColumnSpec>(item));
        if (!keys[specs.back().list].insert(specs.back().key).second) throw nb::value_error("a key has one column");
    }
    return specs;
}

// The GIL is let go while a decoder or an encoder works: a second thread has to be kept out.
class Turn {
public:
    explicit Turn(std::atomic_flag& busy) : busy_(busy) {
        if (busy_.test_and_set()) throw std::runtime_error("one thread works at a time");
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { busy_.clear(); }

private:
    std::atomic_flag& busy_;
};

// A decoder and the arrays that it writes into: memory is lent, then records are fed, then columns are taken.
class PyDecoder {
public:
    PyDecoder(const nb::sequence& columns, bool check_crc, bool closed, bool sequence_example)
        : decoder_(column_specs(columns), check_crc, closed,
                   sequence_example ? dtf::Message::sequence_example : dtf::Message::example) {}
    PyDecoder(const PyDecoder&) = delete;
    PyDecoder& operator=(const PyDecoder&) = delete;

    void lend(std::size_t column, const Memory& memory) {
        const Turn turn(busy_);
        dtf::Column& target = at(column);
        if (fed_) throw nb::value_error("memory is lent before records are fed");
        const dtf::Layout layout = target.spec().layout;
        if (target.stores_bytes() || target.has_rows() || layout == dtf::Layout::skipped ||
            layout == dtf::Layout::unset) {
            throw nb::value_error("only fixed numeric and raw columns write into memory of a known size");
        }
        const std::size_t slot = target.slot();
        if (slot != 0 && memory.size() % slot != 0) throw nb::value_error("the memory is no whole number of records");
        check_aligned(target, memory);
        target.values = dtf::Buffer(memory.data(), memory.size());
        lent_.append(memory);
    }

    void offer(std::size_t column, const Memory& memory) {
        const Turn turn(busy_);
        dtf::Column& target = at(column);
        if (fed_) throw nb::value_error("memory is offered before records are fed");
        if (!(target.stores_bytes() || target.has_rows()) || !target.values.keeps()) {
            throw nb::value_error("only columns that keep values of any number begin in memory that may be too small");
        }
        check_aligned(target, memory);
        target.values = dtf::Buffer::offered(memory.data(), memory.size());
        lent_.append(memory);
    }

    Result feed(const Bytes& buffer, std::size_t begin, std::size_t end, std::int64_t limit, std::uint64_t offset) {
        return fed(buffer, begin, end, offset, [&](const std::uint8_t* data, std::size_t size) {
            return decoder_.feed(data, size, limit_of(limit), offset);
        });
    }

    Result pick(const Bytes& buffer, std::size_t begin, std::size_t end, std::uint64_t first, const Splits& wanted,
                std::uint64_t offset) {
        return fed(buffer, begin, end, offset, [&](const std::uint8_t* data, std::size_t size) {
            return decoder_.pick(data, size, first, wanted.data(), wanted.size(), offset);
        });
    }

    void expect(double times) {
        const Turn turn(busy_);
        decoder_.expect(times);
    }

    Result problem() {
        const Turn turn(busy_);
        const dtf::Problem& problem = decoder_.problem();
        return nb::make_tuple(static_cast<int>(problem.fault), problem.column, problem.step, problem.found,
                              nb::bytes(problem.text.data(), problem.text.size()));
    }

    Result take(std::size_t index) {
        const Turn turn(busy_);
        dtf::Column& column = at(index);
        if (!taken_.insert(index).second) throw nb::value_error("a column is taken once");
        const auto splits = [](bool there, dtf::Buffer& buffer) {
            return there ? array<std::int64_t>(buffer) : nb::object(nb::none());
        };
        const bool kept = !column.values.borrowed() && column.values.keeps();
        return nb::make_tuple(kept ? array<std::uint8_t>(column.values) : nb::object(nb::none()),
                              splits(column.stores_bytes(), column.value_splits),
                              splits(column.has_steps(), column.step_splits),
                              splits(column.has_rows(), column.row_splits),
                              splits(column.has_shapes(), column.shapes));
    }

private:
    template <class Feed>
    Result fed(const Bytes& buffer, std::size_t begin, std::size_t end, std::uint64_t offset, Feed feed) {
        const Turn turn(busy_);
        check_range(buffer, begin, end);
        if (offset > dtf::absurd_length) throw nb::value_error("no stream is that long");
        if (!taken_.empty()) throw nb::value_error("the columns have been taken: make another Decoder");
        fed_ = true;
        dtf::Walk walk;
        {
            nb::gil_scoped_release released;
            walk = feed(buffer.data() + begin, end - begin);
        }
        return result(walk);
    }

    static void check_aligned(const dtf::Column& column, const Memory& memory) {
        const bool as_read = column.spec().kind == dtf::Kind::int64 && column.spec().cast == dtf::Cast::none;
        if (as_read && reinterpret_cast<std::uintptr_t>(memory.data()) % 8 != 0) {
            throw nb::value_error("the memory of integers is aligned to them");
        }
    }

    dtf::Column& at(std::size_t index) {
        if (index >= decoder_.columns().size()) throw nb::index_error("no such column");
        return decoder_.columns()[index];
    }

    dtf::Decoder decoder_;
    nb::list lent_;
    std::unordered_set<std::size_t> taken_;
    bool fed_ = false;
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

// A field and the arrays that it views.
struct PyField {
    dtf::Field field;
    std::optional<Splits> value_splits, step_splits, row_splits;
    Bytes values;
};

PyField field_of(const nb::bytes& key, int kind, const Bytes& values, bool list, std::size_t count,
                 const nb::bytes& prefix, std::optional<Splits> value_splits, std::optional<Splits> step_splits,
                 std::optional<Splits> row_splits) {
    PyField made;
    made.field.key.assign(key.c_str(), key.size());
    made.field.kind = static_cast<dtf::Kind>(kind);
    made.field.list = list;
    made.field.count = count;
    made.field.prefix.assign(prefix.c_str(), prefix.size());
    if (kind < 1 || kind > 3) throw nb::value_error("no such kind");
    if (count > most_values) throw nb::value_error("no record holds so many values");
    const bool bytes = made.field.kind == dtf::Kind::bytes;
    if (bytes != value_splits.has_value()) throw nb::value_error("bytes values, and no others, have splits");
    if (!bytes && prefix.size() != 0) throw nb::value_error("numbers have no prefix");
    if (list ? !row_splits.has_value() : step_splits.has_value()) {
        throw nb::value_error("feature lists say where rows end, and they alone where steps do");
    }
    const auto data = [](const std::optional<Splits>& splits) { return splits ? splits->data() : nullptr; };
    made.field.values = values.data();
    made.field.value_splits = data(value_splits);
    made.field.step_splits = data(step_splits);
    made.field.row_splits = data(row_splits);
    made.values = values;
    made.value_splits = std::move(value_splits);
    made.step_splits = std::move(step_splits);
    made.row_splits = std::move(row_splits);
    return made;
}

// Where the last of `groups` groups ends, if splits ascend from a place that is one.
std::size_t last_of(const std::optional<Splits>& splits, std::size_t groups, std::size_t count) {
    if (!splits) {
        if (count != 0 && groups > most_values / count) throw nb::value_error("more values than there can be");
        return groups * count;
    }
    if (splits->size() == 0 || splits->size() - 1 < groups) throw nb::value_error("splits are one more than groups");
    const std::int64_t* at = splits->data();
    bool ascend = at[0] >= 0;
    for (std::size_t i = 0; i < groups; ++i) ascend &= at[i] <= at[i + 1];
    if (!ascend) throw nb::value_error("splits ascend from 0 on");
    return static_cast<std::size_t>(at[groups]);
}

void check_field(const PyField& field, std::size_t rows) {
    const dtf::Field& spec = field.field;
    std::size_t items = last_of(field.row_splits, rows, spec.count);
    if (spec.list) items = last_of(field.step_splits, items, spec.count);
    const std::size_t width = spec.kind == dtf::Kind::floats ? 4 : 8;
    const std::size_t nbytes =
        spec.kind == dtf::Kind::bytes ? last_of(field.value_splits, items, 1) : last_of(std::nullopt, items, width);
    if (nbytes > field.values.size()) throw nb::value_error("the splits reach past the values");
}

// Records of columns, from arrays that are kept until they are made.
class PyEncoder {
public:
    PyEncoder(const nb::sequence& fields, std::size_t rows, bool sequence_example)
        : encoder_(checked(fields, rows), rows,
                   sequence_example ? dtf::Message::sequence_example : dtf::Message::example),
          rows_(rows) {}
    PyEncoder(const PyEncoder&) = delete;
    PyEncoder& operator=(const PyEncoder&) = delete;

    Result encode(std::size_t first, const Memory& out) {
        const Turn turn(busy_);
        if (first > rows_) throw nb::index_error("no such row");
        dtf::Encoded done;
        {
            nb::gil_scoped_release released;
            done = encoder_.encode(first, out.data(), out.size());
        }
        return nb::make_tuple(done.records, done.bytes, done.need);
    }

private:
    std::vector<dtf::Field> checked(const nb::sequence& fields, std::size_t rows) {
        std::vector<dtf::Field> specs;
        std::unordered_set<std::string> keys[2];
        for (nb::handle item : fields) {
            const PyField& field = nb::cast<const PyField&>(item);
            check_field(field, rows);
            if (!keys[field.field.list].insert(field.field.key).second) throw nb::value_error("a key has one field");
            specs.push_back(field.field);
            kept_.append(item);
        }
        return specs;
    }

    nb::list kept_;
    dtf::Encoder encoder_;
    std::size_t rows_;
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace

NB_MODULE(_native, module) {
    // What a module or a traceback holds on to until the interpreter ends is no leak.
    nb::set_leak_warnings(false);
    module.doc() = "Framing and Example decoding; `records` and `columns` use it, nobody else.";
    for (const auto& [name, value] : {std::pair{"MORE", dtf::Stop::more}, {"LIMIT", dtf::Stop::limit},
                                      {"FRAMING", dtf::Stop::framing}, {"FEATURE", dtf::Stop::feature}}) {
        module.attr(name) = static_cast<int>(value);
    }
    // Arguments are not converted: a copy would cost a block, or take what is written away with it.
    module.def("find_header", &find_header, "buffer"_a.noconvert(), "begin"_a, "end"_a, "room"_a);
    module.def("scan", &scan, "buffer"_a.noconvert(), "begin"_a, "end"_a, "limit"_a, "check_crc"_a);
    nb::class_<dtf::ColumnSpec>(module, "Column")
        .def(nb::new_(&column_spec), "key"_a, "kind"_a, "layout"_a, nb::kw_only(), "count"_a = 1, "swap"_a = 1,
             "text"_a = false, "boolean"_a = false, "list"_a = false, "optional"_a = false, "counted"_a = false,
             "cast"_a = 0, "fallback"_a = nb::tuple(), "tensor_dtype"_a = 0, "tensor_item"_a = 0,
             "tensor_shape"_a = nb::tuple());
    nb::class_<PyDecoder>(module, "Decoder")
        .def(nb::init<const nb::sequence&, bool, bool, bool>(), "columns"_a, "check_crc"_a, "closed"_a,
             "sequence_example"_a = false)
        .def("lend", &PyDecoder::lend, "column"_a, "memory"_a.noconvert())
        .def("offer", &PyDecoder::offer, "column"_a, "memory"_a.noconvert())
        .def("feed", &PyDecoder::feed, "buffer"_a.noconvert(), "begin"_a, "end"_a, "limit"_a, "offset"_a = 0)
        .def("pick", &PyDecoder::pick, "buffer"_a.noconvert(), "begin"_a, "end"_a, "first"_a, "wanted"_a.noconvert(),
             "offset"_a = 0)
        .def("expect", &PyDecoder::expect, "times"_a)
        .def("problem", &PyDecoder::problem)
        .def("take", &PyDecoder::take, "column"_a);
    nb::class_<PyField>(module, "Field")
        .def(nb::new_(&field_of), "key"_a, "kind"_a, "values"_a.noconvert(), nb::kw_only(), "list"_a = false,
             "count"_a = 1, "prefix"_a = nb::bytes("", 0), "value_splits"_a.noconvert() = nb::none(),
             "step_splits"_a.noconvert() = nb::none(), "row_splits"_a.noconvert() = nb::none());
    nb::class_<PyEncoder>(module, "Encoder")
        .def(nb::init<const nb::sequence&, std::size_t, bool>(), "fields"_a, "rows"_a, "sequence_example"_a = false)
        .def("encode", &PyEncoder::encode, "first"_a, "out"_a.noconvert());
    add_rows(module);
    add_resync(module);
}
