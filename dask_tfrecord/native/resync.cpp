// The Python face of what finds records among damage.
#include "resync.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::int64_t number(std::uint64_t value) { return value == dtf::nowhere ? -1 : static_cast<std::int64_t>(value); }

nb::tuple check_records(const Bytes& buffer, std::size_t begin, std::size_t end) {
    if (begin > end || end > buffer.size()) throw nb::index_error("the range lies outside of the buffer");
    dtf::Walk walk;
    {
        nb::gil_scoped_release released;
        walk = dtf::Framing(true).check(buffer.data() + begin, end - begin);
    }
    return nb::make_tuple(walk.records, walk.consumed, static_cast<int>(walk.stop), walk.need);
}

class PyResync {
public:
    PyResync(std::uint64_t start, std::int64_t size, bool boundary)
        : resync_(start, size < 0 ? dtf::nowhere : static_cast<std::uint64_t>(size), boundary) {}
    PyResync(const PyResync&) = delete;
    PyResync& operator=(const PyResync&) = delete;

    std::size_t feed(const Bytes& buffer, std::size_t begin, std::size_t end, bool last) {
        if (begin > end || end > buffer.size()) throw nb::index_error("the range lies outside of the buffer");
        // The GIL is let go: a second thread has to be kept out.
        if (busy_.test_and_set()) throw std::runtime_error("a Resync works for one thread at a time");
        std::size_t done = 0;
        try {
            nb::gil_scoped_release released;
            done = resync_.feed(buffer.data() + begin, end - begin, last);
        } catch (...) {
            busy_.clear();
            throw;
        }
        busy_.clear();
        return done;
    }

    nb::list stretches() const {
        nb::list list;
        for (const dtf::Stretch& stretch : resync_.stretches()) {
            list.append(nb::make_tuple(stretch.start, stretch.end, stretch.records, number(stretch.root), stretch.lost,
                                       stretch.sealed, stretch.promised, stretch.reach, stretch.payload));
        }
        return list;
    }

    nb::tuple tail() const { return nb::make_tuple(number(resync_.tail_root()), resync_.tail_lost()); }
    nb::tuple last() const {
        const std::vector<dtf::Stretch>& all = resync_.stretches();
        if (all.empty()) return nb::make_tuple(-1, -1, 0);
        return nb::make_tuple(all.back().start, all.back().end, all.back().records);
    }
    std::uint64_t position() const { return resync_.position(); }
    std::uint64_t holding() const { return resync_.holding(); }
    std::uint64_t looked() const { return resync_.looked(); }

private:
    dtf::Resync resync_;
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace

void add_resync(nb::module_& module) {
    module.def("check_records", &check_records, "buffer"_a.noconvert(), "begin"_a, "end"_a);
    nb::class_<PyResync>(module, "Resync")
        .def(nb::init<std::uint64_t, std::int64_t, bool>(), "start"_a, "size"_a, "boundary"_a)
        .def("feed", &PyResync::feed, "buffer"_a.noconvert(), "begin"_a, "end"_a, "last"_a)
        .def("stretches", &PyResync::stretches)
        .def("tail", &PyResync::tail)
        .def("last", &PyResync::last)
        .def_prop_ro("position", &PyResync::position)
        .def_prop_ro("holding", &PyResync::holding)
        .def_prop_ro("looked", &PyResync::looked);
}
