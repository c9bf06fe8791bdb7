// Python bindings of `Resync`, which finds records in a damaged stream.
//
// Wire layout of a stream: records without gaps, little-endian:
//
//     uint64 length                 header, 12 bytes
//     uint32 masked CRC32C of the 8 bytes of length
//     byte   payload[length]
//     uint32 masked CRC32C of the payload
//
// Specification: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
// and https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/io/record_writer.h
#include "resync.hpp"

#include "binding.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using binding::Bytes;
using binding::ExclusiveUse;

namespace {

std::int64_t position_or_minus_one(std::uint64_t value) {
    return value == dtf::nowhere ? -1 : static_cast<std::int64_t>(value);
}

// Bytes after the last stretch.
struct Tail {
    std::int64_t root;
    std::uint64_t lost;
};

class PyResync {
public:
    PyResync(std::uint64_t start, std::optional<std::uint64_t> size)
        : resync_(start, size.value_or(dtf::nowhere), true) {}
    PyResync(const PyResync&) = delete;
    PyResync& operator=(const PyResync&) = delete;

    std::size_t feed(const Bytes& buffer, std::size_t begin, std::size_t end, bool last) {
        const ExclusiveUse use(busy_);
        binding::check_range(buffer, begin, end);
        return binding::without_gil([&] { return resync_.feed(buffer.data() + begin, end - begin, last); });
    }

    nb::typed<nb::list, dtf::Stretch> stretches() {
        const ExclusiveUse use(busy_);
        nb::typed<nb::list, dtf::Stretch> list;
        for (const dtf::Stretch& stretch : resync_.stretches()) list.append(nb::cast(stretch));
        return list;
    }

    dtf::Stretch last_stretch() {
        const ExclusiveUse use(busy_);
        return resync_.stretches().back();  // the constructor adds the first one
    }

    Tail tail() {
        const ExclusiveUse use(busy_);
        return {position_or_minus_one(resync_.tail_root()), resync_.tail_lost()};
    }

    std::uint64_t position() {
        const ExclusiveUse use(busy_);
        return resync_.position();
    }

    std::uint64_t nested() {
        const ExclusiveUse use(busy_);
        return resync_.nested();
    }

private:
    dtf::Resync resync_;
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace

void binding::add_resync(nb::module_& module) {
    nb::class_<dtf::Stretch>(module, "Stretch", "Consecutive intact records of a damaged stream.")
        .def_ro("start", &dtf::Stretch::start, "Byte of the first header.")
        .def_ro("end", &dtf::Stretch::end, "Byte after the last record.")
        .def_ro("records", &dtf::Stretch::records, "Number of records.")
        .def_prop_ro(
            "root", [](const dtf::Stretch& stretch) { return position_or_minus_one(stretch.root); },
            "End of the preceding stretch that headers or a payload CRC lead from to this one, or -1.")
        .def_ro("lost", &dtf::Stretch::lost, "Number of damaged records between `root` and `start`.")
        .def_ro("sealed", &dtf::Stretch::sealed, "Whether one record with an intact payload lies between them.")
        .def_ro("header_end", &dtf::Stretch::header_end, "End of the next record if its header is intact.")
        .def_ro("reach", &dtf::Stretch::reach, "End of the last record that intact headers lead to.")
        .def_ro("payload", &dtf::Stretch::payload, "Whether the CRC of the whole stretch follows it.");
    nb::class_<Tail>(module, "Tail", "Bytes after the last stretch.")
        .def_ro("root", &Tail::root, "End of the stretch that headers lead from to the end of the stream, or -1.")
        .def_ro("lost", &Tail::lost, "Number of damaged records between `root` and the end of the stream.");
    nb::class_<PyResync>(module, "Resync", "Finds the stretches of intact records in a damaged stream.")
        .def(nb::init<std::uint64_t, std::optional<std::uint64_t>>(), "start"_a, "size"_a = nb::none(),
             "Start at byte `start`, where a record begins; `size` is that of the stream, or None.")
        .def("feed", &PyResync::feed, "buffer"_a.noconvert(), "begin"_a, "end"_a, "last"_a,
             "Read the bytes from `position` on and return the number of bytes that are no longer needed.")
        .def("stretches", &PyResync::stretches, "Return all stretches found so far.")
        .def("last_stretch", &PyResync::last_stretch, "Return the last stretch found so far.")
        .def("tail", &PyResync::tail, "Describe the bytes after the last stretch, once all bytes are read.")
        .def_prop_ro("position", &PyResync::position, "Byte of the stream that the next call of `feed` starts at.")
        .def_prop_ro("nested", &PyResync::nested, "Number of intact records so far whose payload holds records.");
}
