// The Python face of the native core: checks arguments, lets go of the GIL once per block, hands out arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <stdexcept>
#include <unordered_set>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "example.hpp"

namespace nb = nanobind;
using namespace nb::literals;

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

// A list of bytes objects: twice as fast as slices of one bytes object.
nb::object bytes_list(const Bytes& values, const Splits& splits) {
    const std::size_t size = splits.size() > 0 ? splits.size() - 1 : 0;
    nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(size)));
    if (!list.is_valid()) throw nb::python_error();
    for (std::size_t i = 0; i < size; ++i) {
        const std::int64_t begin = splits.data()[i];
        const std::int64_t end = splits.data()[i + 1];
        if (begin < 0 || begin > end || static_cast<std::uint64_t>(end) > values.size()) {
            throw nb::value_error("splits ascend within the values");
        }
        const char* data = reinterpret_cast<const char*>(values.data()) + begin;
        PyObject* item = PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(end - begin));
        if (item == nullptr) throw nb::python_error();
        PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    return list;
}

// What threads have freed, glibc keeps for them: with a pool of writing threads that is many times what is in use.
void release_memory() {
#if defined(__GLIBC__)
    nb::gil_scoped_release released;
    malloc_trim(0);
#endif
}

template <class T>
nb::object array(dtf::Buffer& buffer) {
    const std::size_t size = buffer.size() / sizeof(T);
    std::uint8_t* memory = buffer.release();
    nb::capsule owner(memory, [](void* pointer) noexcept { std::free(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(memory, {size}, owner));
}

void check(const dtf::ColumnSpec& spec) {
    const bool bytes = spec.kind == dtf::Kind::bytes;
    const bool raw = spec.layout == dtf::Layout::raw;
    if (spec.kind < dtf::Kind::none || spec.kind > dtf::Kind::int64) throw nb::value_error("no such kind");
    if (spec.layout < dtf::Layout::fixed || spec.layout > dtf::Layout::unset) throw nb::value_error("no such layout");
    if ((raw && !bytes) || (spec.text && (!bytes || raw))) throw nb::value_error("raw values and text are bytes");
    if (spec.count > most_values) throw nb::value_error("no record holds so many values");
    if (spec.swap == 0 || (raw && spec.count % spec.swap != 0)) {
        throw nb::value_error("a raw value is a whole number of items");
    }
    if (spec.layout == dtf::Layout::ragged && spec.count == 0) throw nb::value_error("rows of no values");
}

dtf::ColumnSpec column_spec(nb::handle item) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 7) throw nb::value_error("a column is key, kind, layout, count, swap, text and boolean");
    const auto key = nb::cast<nb::bytes>(fields[0]);
    int kind, layout;
    dtf::ColumnSpec spec;
    spec.key.assign(key.c_str(), key.size());
    if (!nb::try_cast(fields[1], kind) || !nb::try_cast(fields[2], layout) || !nb::try_cast(fields[3], spec.count) ||
        !nb::try_cast(fields[4], spec.swap) || !nb::try_cast(fields[5], spec.text) ||
        !nb::try_cast(fields[6], spec.boolean)) {
        throw nb::value_error("a field of a column is of another type, or too large");
    }
    spec.kind = static_cast<dtf::Kind>(kind);
    spec.layout = static_cast<dtf::Layout>(layout);
    check(spec);
    return spec;
}

std::vector<dtf::ColumnSpec> column_specs(const nb::sequence& items) {
    std::vector<dtf::ColumnSpec> specs;
    std::unordered_set<std::string> keys;
    for (nb::handle item : items) {
        specs.push_back(column_spec(item));
        if (!keys.insert(specs.back().key).second) throw nb::value_error("a key has one column");
    }
    return specs;
}

// The GIL is let go while a decoder works: a second thread has to be kept out.
class Turn {
public:
    explicit Turn(std::atomic_flag& busy) : busy_(busy) {
        if (busy_.test_and_set()) throw std::runtime_error("a Decoder works for one thread at a time");
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
    PyDecoder(const nb::sequence& columns, bool check_crc, bool closed)
        : decoder_(column_specs(columns), check_crc, closed) {}
    PyDecoder(const PyDecoder&) = delete;
    PyDecoder& operator=(const PyDecoder&) = delete;

    void lend(std::size_t column, const Memory& memory) {
        const Turn turn(busy_);
        dtf::Column& target = at(column);
        if (fed_) throw nb::value_error("memory is lent before records are fed");
        const dtf::Layout layout = target.spec().layout;
        if (target.stores_bytes() || (layout != dtf::Layout::fixed && layout != dtf::Layout::raw)) {
            throw nb::value_error("only fixed numeric and raw columns write into memory of a known size");
        }
        const std::size_t slot = target.slot();
        if (slot != 0 && memory.size() % slot != 0) throw nb::value_error("the memory is no whole number of records");
        if (target.spec().kind == dtf::Kind::int64 && reinterpret_cast<std::uintptr_t>(memory.data()) % 8 != 0) {
            throw nb::value_error("the memory of integers is aligned to them");
        }
        target.values = dtf::Buffer(memory.data(), memory.size());
        lent_.append(memory);
    }

    Result feed(const Bytes& buffer, std::size_t begin, std::size_t end, std::int64_t limit) {
        const Turn turn(busy_);
        check_range(buffer, begin, end);
        if (!taken_.empty()) throw nb::value_error("the columns have been taken: make another Decoder");
        fed_ = true;
        dtf::Walk walk;
        {
            nb::gil_scoped_release released;
            walk = decoder_.feed(buffer.data() + begin, end - begin, limit_of(limit));
        }
        return result(walk);
    }

    void expect(double times) {
        const Turn turn(busy_);
        decoder_.expect(times);
    }

    Result problem() {
        const Turn turn(busy_);
        const dtf::Problem& problem = decoder_.problem();
        return nb::make_tuple(static_cast<int>(problem.fault), problem.column, problem.found,
                              nb::bytes(problem.key.data(), problem.key.size()));
    }

    Result take(std::size_t index) {
        const Turn turn(busy_);
        dtf::Column& column = at(index);
        if (!taken_.insert(index).second) throw nb::value_error("a column is taken once");
        nb::object values = nb::none();
        if (!column.values.borrowed()) {
            const dtf::Kind kind = column.spec().kind;
            values = kind == dtf::Kind::int64    ? array<std::int64_t>(column.values)
                     : kind == dtf::Kind::floats ? array<float>(column.values)
                                                 : array<std::uint8_t>(column.values);
        }
        const bool ragged = column.spec().layout == dtf::Layout::ragged;
        return nb::make_tuple(values, column.stores_bytes() ? array<std::int64_t>(column.value_splits) : nb::none(),
                              ragged ? array<std::int64_t>(column.row_splits) : nb::none());
    }

private:
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

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Framing and Example decoding; `records` and `columns` use it, nobody else.";
    for (const auto& [name, value] : {std::pair{"MORE", dtf::Stop::more}, {"LIMIT", dtf::Stop::limit},
                                      {"FRAMING", dtf::Stop::framing}, {"FEATURE", dtf::Stop::feature}}) {
        module.attr(name) = static_cast<int>(value);
    }
    // Arguments are not converted: a copy would cost a block, or take what is written away with it.
    module.def("scan", &scan, "buffer"_a.noconvert(), "begin"_a, "end"_a, "limit"_a, "check_crc"_a);
    module.def("release_memory", &release_memory);
    module.def("bytes_list", &bytes_list, "values"_a.noconvert(), "splits"_a.noconvert());
    nb::class_<PyDecoder>(module, "Decoder")
        .def(nb::init<const nb::sequence&, bool, bool>(), "columns"_a, "check_crc"_a, "closed"_a)
        .def("lend", &PyDecoder::lend, "column"_a, "memory"_a.noconvert())
        .def("feed", &PyDecoder::feed, "buffer"_a.noconvert(), "begin"_a, "end"_a, "limit"_a)
        .def("expect", &PyDecoder::expect, "times"_a)
        .def("problem", &PyDecoder::problem)
        .def("take", &PyDecoder::take, "column"_a);
}
