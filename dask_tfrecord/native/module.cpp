// The extension module `_native`: enumerations, record framing, and the parts that the other files add.
#include "binding.hpp"
#include "example.hpp"
#include "files.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using binding::Bytes;
using binding::Integers;
using binding::OutputBytes;

namespace {

dtf::Walk scan(const Bytes& buffer, std::size_t begin, std::size_t end, std::int64_t limit, bool check_crc) {
    binding::check_range(buffer, begin, end);
    const std::uint64_t most = limit < 0 ? UINT64_MAX : static_cast<std::uint64_t>(limit);
    return binding::without_gil([&] { return dtf::Framing(check_crc).scan(buffer.data() + begin, end - begin, most); });
}

dtf::Walk find_ends(const Bytes& buffer, std::size_t begin, std::size_t end, bool check_crc,
                    const binding::OutputIntegers& ends) {
    binding::check_range(buffer, begin, end);
    return binding::without_gil([&] {
        return dtf::Framing(check_crc).ends(buffer.data() + begin, end - begin, ends.data(), ends.size());
    });
}

// Copy the stored CRCs of the payloads of records that end at `ends`.
void record_crcs(const Bytes& buffer, const Integers& ends, const OutputBytes& out) {
    constexpr auto size = static_cast<std::int64_t>(dtf::footer_size);
    if (out.size() != ends.size() * dtf::footer_size) throw nb::value_error("out must have four bytes for each record");
    const bool within = binding::without_gil([&] {
        for (std::size_t i = 0; i < ends.size(); ++i) {
            const std::int64_t end = ends.data()[i];
            if (end < size || static_cast<std::size_t>(end) > buffer.size()) return false;
            std::memcpy(out.data() + i * dtf::footer_size, buffer.data() + end - size, dtf::footer_size);
        }
        return true;
    });
    if (!within) throw nb::index_error("records must end within the buffer");
}

// Read the ranges of a file one after the other to `out`. Ranges that follow each other are read at once.
std::int64_t read_ranges(int file, const Integers& begins, const Integers& ends, const OutputBytes& out) {
    if (begins.size() != ends.size()) throw nb::value_error("begins and ends must have the same length");
    const dtf::Read read = binding::without_gil(
        [&] { return dtf::read_ranges(file, begins.data(), ends.data(), begins.size(), out.data(), out.size()); });
    if (read.error < 0) throw nb::value_error("out must have the total size of the ranges");
    if (read.error != 0) {
        errno = read.error;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return read.end;
}

// Buffers of objects that stay unchanged until they are released, which needs the GIL.
class HeldBuffers {
public:
    explicit HeldBuffers(const nb::list& objects) {
        views_.reserve(objects.size());
        for (const nb::handle object : objects) {
            Py_buffer view;
            if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) {
                release();
                throw nb::python_error();
            }
            views_.push_back(view);
        }
    }
    HeldBuffers(const HeldBuffers&) = delete;
    HeldBuffers& operator=(const HeldBuffers&) = delete;
    ~HeldBuffers() { release(); }

    const Py_buffer& operator[](std::size_t index) const { return views_[index]; }

private:
    void release() {
        for (Py_buffer& view : views_) PyBuffer_Release(&view);
    }

    std::vector<Py_buffer> views_;
};

using Paths = nb::typed<nb::list, nb::bytes>;

std::vector<std::string> paths_of(const Paths& paths) {
    std::vector<std::string> found;
    found.reserve(paths.size());
    for (const nb::handle path : paths) {
        const auto text = nb::cast<nb::bytes>(path);
        found.emplace_back(text.c_str(), text.size());
        if (found.back().find('\0') != std::string::npos) throw nb::value_error("a path has no null character");
    }
    return found;
}

// Write files one after the other, each under a temporary name; return the number of those before the first failure.
std::size_t publish_files(const Paths& temporaries, const Paths& paths, const nb::typed<nb::list, nb::object>& values) {
    if (temporaries.size() != values.size() || paths.size() != values.size()) {
        throw nb::value_error("each file has a temporary name, a path and a value");
    }
    const std::vector<std::string> from = paths_of(temporaries), to = paths_of(paths);
    const HeldBuffers data(values);
    return binding::without_gil([&] {
        std::size_t done = 0;
        while (done < to.size() && dtf::publish_file(from[done].c_str(), to[done].c_str(),
                                                     static_cast<const std::uint8_t*>(data[done].buf),
                                                     static_cast<std::size_t>(data[done].len))) {
            ++done;
        }
        return done;
    });
}

nb::typed<nb::list, nb::int_> file_sizes(const Paths& paths) {
    const std::vector<std::string> names = paths_of(paths);
    std::vector<std::int64_t> sizes(names.size());
    binding::without_gil([&] {
        std::transform(names.begin(), names.end(), sizes.begin(), [](const std::string& name) {
            return dtf::file_size(name.c_str());
        });
        return 0;
    });
    nb::typed<nb::list, nb::int_> found;
    for (const std::int64_t size : sizes) found.append(size);
    return found;
}

void make_origin(binding::Origin* self, std::optional<int> file, std::optional<Bytes> memory, std::uint64_t stop,
                 std::uint64_t size, std::uint64_t most, std::size_t first, std::size_t block) {
    if (file.has_value() == memory.has_value()) throw nb::value_error("an origin is a file or memory");
    if (memory && size > memory->size()) throw nb::value_error("size exceeds the memory");
    if (first == 0 || block == 0) throw nb::value_error("first and block must be positive");
    new (self) binding::Origin{file.value_or(-1), std::move(memory), {stop, size, most, first, block}};
}

dtf::Walk check_records(const Bytes& buffer, std::size_t begin, std::size_t end) {
    binding::check_range(buffer, begin, end);
    return binding::without_gil([&] { return dtf::Framing(true).check(buffer.data() + begin, end - begin); });
}

std::int64_t find_header(const Bytes& buffer, std::size_t begin, std::size_t end, std::uint64_t available) {
    binding::check_range(buffer, begin, end);
    return binding::without_gil([&] { return dtf::Framing(true).find(buffer.data() + begin, end - begin, available); });
}

void add_enumerations(nb::module_& module) {
    using dtf::Cast;
    using dtf::Content;
    using dtf::DataType;
    using dtf::Fault;
    using dtf::Kind;
    using dtf::Stop;
    using dtf::ValueLayout;
    nb::enum_<Stop>(module, "Stop", "Reason why a walk over the records of a buffer stopped.")
        .value("MORE", Stop::more, "The buffer ends within a record.")
        .value("LIMIT", Stop::limit, "The requested number of records was read.")
        .value("FRAMING", Stop::framing, "A CRC does not match.")
        .value("FEATURE", Stop::feature, "The CRCs of a record match, but the columns do not accept its content.");
    nb::enum_<Kind>(module, "Kind", "List of a Feature message that holds the values; the field number of the list.")
        .value("NONE", Kind::none)
        .value("BYTES", Kind::bytes)
        .value("FLOATS", Kind::floats)
        .value("INT64", Kind::int64);
    nb::enum_<dtf::Message>(module, "Message", "Message of a record.")
        .value("EXAMPLE", dtf::Message::example)
        .value("SEQUENCE_EXAMPLE", dtf::Message::sequence_example)
        .value("EXAMPLE_LIST", dtf::Message::example_list, "ExampleListWithContext of TF-Ranking.");
    nb::enum_<ValueLayout>(module, "ValueLayout", "Layout of the values of one key.")
        .value("FIXED", ValueLayout::fixed, "The same number of values in every record or step.")
        .value("RAGGED", ValueLayout::ragged, "Any number of values.")
        .value("RAW", ValueLayout::raw, "One bytes value of a known size, copied to its slot.")
        .value("SKIPPED", ValueLayout::skipped, "A known key whose values are not decoded.")
        .value("UNSET", ValueLayout::unset, "A key that must not hold values.")
        .value("TENSOR", ValueLayout::tensor, "One bytes value that is a TensorProto.");
    nb::enum_<Content>(module, "Content", "What values must be beyond their kind.")
        .value("ANY", Content::any)
        .value("TEXT", Content::text, "Bytes values are UTF-8.")
        .value("BOOLEANS", Content::booleans, "Raw bytes are 0 or 1.")
        .value("MIXED", Content::mixed, "Floats that some records list as integers, which the type holds exactly.");
    nb::enum_<Cast>(module, "Cast", "Type that int64 or float32 values are cast to, named after the NumPy dtype.")
        .value("NONE", Cast::none)
        .value("BOOL", Cast::boolean)
        .value("INT8", Cast::int8)
        .value("INT16", Cast::int16)
        .value("INT32", Cast::int32)
        .value("UINT8", Cast::uint8)
        .value("UINT16", Cast::uint16)
        .value("UINT32", Cast::uint32)
        .value("UINT64", Cast::uint64)
        .value("FLOAT16", Cast::float16)
        .value("BFLOAT16", Cast::bfloat16)
        .value("FLOAT64", Cast::float64);
    nb::enum_<DataType>(module, "DataType", "Element type of a TensorProto; the numbers of TensorFlow's types.proto.")
        .value("FLOAT32", DataType::float32)
        .value("FLOAT64", DataType::float64)
        .value("INT32", DataType::int32)
        .value("UINT8", DataType::uint8)
        .value("INT16", DataType::int16)
        .value("INT8", DataType::int8)
        .value("BYTES", DataType::string)
        .value("COMPLEX64", DataType::complex64)
        .value("INT64", DataType::int64)
        .value("BOOL", DataType::boolean)
        .value("BFLOAT16", DataType::bfloat16)
        .value("UINT16", DataType::uint16)
        .value("COMPLEX128", DataType::complex128)
        .value("FLOAT16", DataType::float16)
        .value("UINT32", DataType::uint32)
        .value("UINT64", DataType::uint64);
    nb::enum_<Fault>(module, "Fault", "Reason why the decoder refused a record.")
        .value("NONE", Fault::none)
        .value("MALFORMED", Fault::malformed, "Not a valid protobuf message.")
        .value("NOT_EXAMPLE", Fault::not_example, "A valid message of another type.")
        .value("MISSING", Fault::missing, "The record lacks a feature.")
        .value("KIND", Fault::kind, "Values in the list of another kind.")
        .value("COUNT", Fault::count, "Another number of values.")
        .value("SIZE", Fault::size, "A raw value of another size.")
        .value("UTF8", Fault::utf8, "Text that is not valid UTF-8.")
        .value("UNKNOWN_KEY", Fault::unknown_key, "A feature that the schema lacks.")
        .value("BOOLEAN", Fault::boolean, "A raw bool that is neither 0 nor 1.")
        .value("FULL", Fault::full, "The output buffer of a column is full, or its memory limit is reached.")
        .value("CAST", Fault::cast, "A value outside the range of the type that it is cast to.")
        .value("TENSOR", Fault::tensor, "Not a TensorProto, or one of another dtype, shape or size.");
}

}  // namespace

// Without a GIL, threads may call everything here at the same time. What they share is safe by these rules: classes whose
// state changes take `ExclusiveUse` in each method; instances of others do not change after construction; state of the
// module is `spares` (memory.hpp, behind locks), what each thread keeps of its own (pixels.hpp), and flags and tables that
// are set before the module is imported. Arrays of the caller are not locked: what is checked is copied first where a
// second pass relies on it.
NB_MODULE(_native, module) {
#if defined(NDEBUG)
    // Objects that a module or a traceback holds until the interpreter exits are not leaks. Debug builds report them.
    nb::set_leak_warnings(false);
#endif
    module.doc() = "Native core: record framing, decoding and encoding. Used by `storage`, `records`, `columns` and `images`.";
    add_enumerations(module);
    nb::class_<dtf::Walk>(module, "Walk", "Result of a walk over the records of a buffer.")
        .def_ro("records", &dtf::Walk::records, "Number of records passed.")
        .def_ro("consumed", &dtf::Walk::consumed,
                "Bytes up to the next record; past the end of the buffer if a record was skipped by its header.")
        .def_ro("stop", &dtf::Walk::stop, "Reason why the walk stopped.")
        .def_ro("need", &dtf::Walk::need, "After `Stop.MORE`: bytes from the next record on that the next call needs.");
    nb::class_<binding::Origin>(module, "Origin", "Bytes that a decoder reads itself: of a file, or in memory.")
        .def("__init__", &make_origin, "file"_a.none(), "memory"_a.noconvert().none(), nb::kw_only(), "stop"_a, "size"_a,
             "most"_a, "first"_a, "block"_a,
             "Read `file`, a descriptor that stays open, or `memory`.\n\n"
             "`stop` is the position where reading will probably stop, and `size` that of the end. A call reads about\n"
             "`most` bytes at most: `first` of them at once before the first record, and then twice as many each time, up\n"
             "to `block`.");
    module.def("find_header", &find_header, "buffer"_a.noconvert(), "begin"_a, "end"_a, "available"_a,
               "Return the distance to the next valid header, of a record that ends within `available` bytes, or -1.");
    module.def("scan", &scan, "buffer"_a.noconvert(), "begin"_a, "end"_a, "limit"_a, "check_crc"_a,
               "Walk the headers in ``buffer[begin:end]``, at most `limit` of them if it is not negative.");
    module.def("find_ends", &find_ends, "buffer"_a.noconvert(), "begin"_a, "end"_a, "check_crc"_a, "ends"_a.noconvert(),
               "Walk the headers in ``buffer[begin:end]`` and write the bytes up to the end of each record to `ends`.");
    module.def("record_crcs", &record_crcs, "buffer"_a.noconvert(), "ends"_a.noconvert(), "out"_a.noconvert(),
               "Copy the stored CRCs of the payloads of records that end at the bytes `ends` to `out`, four bytes each.");
    module.def("read_ranges", &read_ranges, "file"_a, "begins"_a.noconvert(), "ends"_a.noconvert(), "out"_a.noconvert(),
               "Read ranges of a file, by its descriptor, one after the other to `out`.\n\n"
               "Returns -1, or the size of a file that ends before the last of them.");
    module.def("publish_files", &publish_files, "temporaries"_a, "paths"_a, "values"_a,
               "Write files one after the other: each under a temporary name, which is then renamed to its path.\n\n"
               "Names are bytes, and values are buffers. Returns how many files were written before the first failure.");
    module.def("file_sizes", &file_sizes, "paths"_a,
               "Return the sizes of files, whose paths are bytes; -1 for one whose size can't be determined.");
    module.def("check_records", &check_records, "buffer"_a.noconvert(), "begin"_a, "end"_a,
               "Walk the whole records in ``buffer[begin:end]`` whose CRCs match.");
    binding::add_decoder(module);
    binding::add_encoder(module);
    binding::add_messages(module);
    binding::add_rows(module);
    binding::add_objects(module);
    binding::add_resync(module);
    binding::add_pixels(module);
}
