// Tests of tensor.hpp with TensorProto messages written by hand.
#include "checks.hpp"
#include "tensor_support.hpp"

namespace {

using namespace support;
using dtf::Buffer;
using dtf::DataType;
using dtf::TensorFault;

const std::size_t lent_nothing = SIZE_MAX;

// A number of a list, with its bytes in an array.
std::string listed(const Dtype& dtype, std::string_view bytes) {
    if (dtype.wire_type != 0) return std::string(bytes);
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    const bool negative = (dtype.number == DataType::int8 || dtype.number == DataType::int16 ||
                           dtype.number == DataType::int32) && (bytes.back() & 0x80) != 0;
    if (negative) value |= ~std::uint64_t{0} << (8 * bytes.size());
    return varint(value);
}

// Result of reading a tensor: its content, or the fault.
struct Read {
    TensorFault fault = TensorFault::none;
    std::string values;
    Sizes ends, sizes;
    dtf::TensorProblem problem;

    Read(const std::string& message, DataType dtype, std::size_t item, const Sizes& shape,
         std::size_t lent = lent_nothing) {
        const Exact block(message);
        std::string memory(lent == lent_nothing ? 0 : lent, '?');
        Buffer into = lent == lent_nothing ? Buffer() : Buffer(reinterpret_cast<std::uint8_t*>(memory.data()), lent);
        Buffer splits, shapes;
        if (lent == lent_nothing) into.push('!');  // what was there stays there
        splits.push(std::int64_t{7});
        const bool fits = dtf::read_tensor(block.cursor(), {static_cast<int>(dtype), item, shape}, into, &splits,
                                           &shapes, problem);
        values = text(into);
        if (lent == lent_nothing) {
            CHECK(values.substr(0, 1) == "!");
            values.erase(0, 1);
        }
        ends = items<std::int64_t>(splits);
        CHECK(ends.front() == 7);
        ends.erase(ends.begin());
        sizes = items<std::int64_t>(shapes);
        fault = fits ? TensorFault::none : problem.fault;
        CHECK(fits || (values.empty() && ends.empty() && sizes.empty() && fault != TensorFault::none));
    }

    Read(const std::string& message, const Dtype& dtype, const Sizes& shape, std::size_t lent = lent_nothing)
        : Read(message, dtype.number, dtype.item, shape, lent) {}

    std::vector<std::string> strings() const {
        std::vector<std::string> found;
        std::size_t begin = 1;
        for (const std::int64_t end : ends) {
            found.push_back(values.substr(begin - 1, static_cast<std::size_t>(end) - begin));
            begin = static_cast<std::size_t>(end);
        }
        return found;
    }
};

Read floats(const std::string& fields, const Sizes& shape) { return Read(fields, DataType::float32, 4, shape); }

const std::string four = little_endian(1.5f) + little_endian(-2.0f) + little_endian(3.0f) + little_endian(0.25f);

std::string some_bytes(const Dtype& dtype, std::size_t count) {
    Random random(count + dtype.item);
    std::string bytes;
    for (std::size_t i = 0; i < count * dtype.item; ++i) {
        bytes += static_cast<char>(dtype.number == DataType::boolean ? random.below(2) : random.next());
    }
    return bytes;
}

// ---- what is read

void content_is_copied_for_every_dtype() {
    for (const Dtype& dtype : dtypes) {
        if (dtype.item == 0) continue;
        const std::string bytes = some_bytes(dtype, 6);
        const std::string message = header(dtype.number, {3, 2}) + content(bytes);
        for (const Sizes& shape : {Sizes{3, 2}, Sizes{-1, 2}, Sizes{-1, -1}}) {
            const Read read(message, dtype, shape);
            CHECK(read.fault == TensorFault::none && read.values == bytes && read.sizes == Sizes{3, 2});
            CHECK(Read(message, dtype, shape, bytes.size()).values == bytes);
            CHECK(Read(message, dtype, shape, bytes.size() - 1).fault == TensorFault::full);
        }
    }
}

void lists_are_read_packed_or_not_for_every_dtype() {
    for (const Dtype& dtype : dtypes) {
        if (dtype.item == 0) continue;
        const std::string bytes = some_bytes(dtype, 5);
        const std::size_t unit = dtype.item / parts(dtype);
        std::string packed, unpacked, mixed;
        for (std::size_t at = 0; at < bytes.size(); at += unit) {
            const std::string value = listed(dtype, bytes.substr(at, unit));
            packed += value;
            unpacked += tag(dtype.list, dtype.wire_type) + value;
            mixed += at % (3 * unit) == 0 ? delimited(dtype.list, value) + delimited(dtype.list, "")
                                          : tag(dtype.list, dtype.wire_type) + value;
            mixed += tag(99, 3) + number(dtype.list, 1) + tag(99, 4);
        }
        const std::string start = header(dtype.number, {5});
        for (const std::string& fields : {delimited(dtype.list, packed), unpacked, mixed}) {
            const Read read(start + fields, dtype, {5});
            CHECK(read.fault == TensorFault::none && read.values == bytes);
            CHECK(Read(fields + start, dtype, {-1}).values == bytes);
        }
        // Fewer: the last one again and again, into lent memory too. None: zeros. Not one too many.
        const std::string more = header(dtype.number, {3, 7}) + delimited(dtype.list, packed);
        std::string repeated = bytes;
        while (repeated.size() < 21 * dtype.item) repeated += bytes.substr(4 * dtype.item);
        CHECK(Read(more, dtype, {3, 7}).values == repeated);
        CHECK(Read(more, dtype, {-1, -1}, repeated.size()).values == repeated);
        CHECK(Read(header(dtype.number, {3}), dtype, {3}).values == std::string(3 * dtype.item, '\0'));
        const Read too_many(header(dtype.number, {2, 2}) + delimited(dtype.list, packed), dtype, {2, 2});
        CHECK(too_many.fault == TensorFault::size);
        CHECK(too_many.problem.text == "5 values where shape (2, 2) takes 4");
    }
}

void lists_of_any_length_are_read() {
    for (const Dtype& dtype : dtypes) {
        if (dtype.item == 0) continue;
        const std::size_t unit = dtype.item / parts(dtype);
        for (const std::size_t count : {511u, 512u, 513u, 1024u, 5000u}) {
            const std::string bytes = some_bytes(dtype, count);
            std::string packed;
            for (std::size_t at = 0; at < bytes.size(); at += unit) packed += listed(dtype, bytes.substr(at, unit));
            const auto size = static_cast<std::int64_t>(count);
            const std::string start = header(dtype.number, {size});
            CHECK(Read(start + delimited(dtype.list, packed), dtype, {size}).values == bytes);
            dtype.wire_type == 0 ? packed.push_back('\x80') : packed.pop_back();  // a value cut short
            CHECK(Read(start + delimited(dtype.list, packed), dtype, {size}).fault == TensorFault::malformed);
        }
    }
}

void scalars_have_no_dims() {
    const std::string one = four.substr(0, 4);
    for (const std::string& fields :
         {content(one), delimited(5, one), tag(5, 5) + one, delimited(2, "") + content(one)}) {
        const Read read = floats(number(1, 1) + fields, {});
        CHECK(read.fault == TensorFault::none && read.values == one && read.sizes.empty());
    }
    CHECK(floats(number(1, 1), {}).values == std::string(4, '\0'));
    CHECK(floats(number(1, 1) + content(four), {}).problem.text ==
          "16 bytes of content where shape () of 4 bytes takes 4");
}

void tensors_without_elements() {
    const Read read = floats(header(DataType::float32, {3, 0}), {3, 0});
    CHECK(read.fault == TensorFault::none && read.values.empty() && read.sizes == Sizes{3, 0});
    CHECK(floats(header(DataType::float32, {3, 0}), {-1, -1}).sizes == Sizes{3, 0});
    CHECK(floats(header(DataType::float32, {0}) + content("abcd"), {0}).fault == TensorFault::size);
    CHECK(floats(header(DataType::float32, {0}) + delimited(5, "abcd"), {0}).fault == TensorFault::size);
    const Read strings(header(DataType::string, {0}), DataType::string, 0, {-1});
    CHECK(strings.fault == TensorFault::none && strings.ends.empty() && strings.sizes == Sizes{0});
}

void messages_merge_as_in_protobuf() {
    const std::string fields = header(DataType::float32, {4});
    CHECK(floats(number(1, 2) + fields + content(four), {4}).values == four);
    CHECK(floats(fields + number(1, 2) + content(four), {4}).problem.dtype == 2);
    CHECK(floats(fields + content("x") + content(four), {4}).values == four);
    CHECK(floats(fields + content(four) + content(""), {4}).values == std::string(16, '\0'));
    CHECK(floats(fields + content("") + delimited(5, four), {4}).values == four);
    CHECK(floats(fields + content(four) + delimited(5, "abcd"), {4}).values == four);
    const std::string half = delimited(2, dims({2}));
    const Read merged = floats(number(1, 1) + half + content(four) + half, {2, 2});
    CHECK(merged.values == four && merged.sizes == Sizes{2, 2});
    const std::string sizes_twice = delimited(2, number(1, 9) + delimited(2, "name") + number(1, 4));
    CHECK(floats(number(1, 1) + delimited(2, sizes_twice) + content(four), {4}).values == four);
    CHECK(floats(number(1, 1) + delimited(2, delimited(2, "")), {-1}).sizes == Sizes{0});
    const std::string known = delimited(2, number(3, 1) + dims({4}) + number(3, 0));
    CHECK(floats(number(1, 1) + known + content(four), {4}).values == four);
    CHECK(floats(number(1, (std::int64_t{1} << 32) + 1) + delimited(2, dims({4})) + content(four), {4}).values == four);
}

void unknown_fields_are_passed() {
    const std::string whole = header(DataType::float32, {4}) + number(3, -7) + content(four);
    const std::string oddities = tag(99, 3) + delimited(4, "x") + tag(99, 4) + delimited(18, "\xff") + number(4, 1) +
                                 delimited(1, "\x02") + number(30, 5) + tag(31, 5) + "abcd" + tag(32, 1) + "abcdefgh" +
                                 delimited(14, "\x07") + delimited(15, "\x07") + number(5, 1) + number(8, 1);
    CHECK(floats(oddities + whole, {4}).values == four && floats(whole + oddities, {4}).values == four);
    const std::string group = tag(9, 3) + number(1, 7) + tag(9, 4);
    const std::string dim = group + number(1, 4) + tag(1, 5) + "abcd" + number(2, 1) + delimited(3, "x");
    const std::string shape = group + delimited(1, "x") + delimited(2, dim) + number(2, 1) + delimited(3, "\x01");
    CHECK(floats(number(1, 1) + delimited(2, shape) + content(four), {4}).values == four);
}

void strings_are_listed() {
    const auto read = [](const Sizes& sizes, const std::string& fields) {
        return Read(header(DataType::string, sizes) + fields, DataType::string, 0, sizes);
    };
    using Strings = std::vector<std::string>;
    const std::string two = delimited(8, "a") + number(8, 3) + delimited(8, std::string("\0bc", 3));
    CHECK(read({2}, two).strings() == Strings{"a", std::string("\0bc", 3)});
    CHECK(read({2, 2}, two).strings() ==
          Strings{"a", std::string("\0bc", 3), std::string("\0bc", 3), std::string("\0bc", 3)});
    CHECK(read({3}, "").strings() == Strings{"", "", ""} && read({}, "").strings() == Strings{""});
    CHECK(read({2}, delimited(8, "") + delimited(8, "")).strings() == Strings{"", ""});
    CHECK(read({1}, two).problem.text == "2 values where shape (1,) takes 1");
    CHECK(read({0}, two).fault == TensorFault::size);
}

void strings_as_content_are_sizes_and_then_bytes() {
    const auto read = [](const Sizes& sizes, const std::string& bytes, const std::string& more = {}) {
        return Read(header(DataType::string, sizes) + content(bytes) + more, DataType::string, 0, sizes);
    };
    using Strings = std::vector<std::string>;
    CHECK(read({2}, "\x01\x02" "abc").strings() == Strings{"a", "bc"});
    CHECK(read({2}, "\x01\x02" "abc", delimited(8, "x")).strings() == Strings{"a", "bc"});
    CHECK(read({1}, std::string("\x81\x80\0" "a", 4)).strings() == Strings{"a"});
    CHECK(read({2}, std::string("\0\0", 2)).strings() == Strings{"", ""});
    CHECK(read({2}, varint(1) + varint(300) + "a" + std::string(300, 'b')).strings() ==
          Strings{"a", std::string(300, 'b')});
    for (const std::string& wrong : {std::string("\x01\x02" "ab"), std::string("\x01\x02" "abcd"), std::string("\x80"),
                                     std::string("\x01"), varint(UINT32_MAX) + varint(UINT32_MAX),
                                     varint(std::uint64_t{1} << 32) + "a"}) {
        CHECK(read({2}, wrong).fault == TensorFault::size);
    }
    CHECK(read({0}, "x").fault == TensorFault::size);
    CHECK(read({INT64_MAX / 8}, "\x01x").fault == TensorFault::size);
}

// ---- what is refused

void other_dtypes() {
    for (const int dtype : {0, 2, 3, 101, 999, -1}) {
        const Read read = floats(number(1, dtype) + delimited(2, dims({4})) + content(four), {4});
        CHECK(read.fault == TensorFault::dtype && read.problem.dtype == dtype && read.problem.text.empty());
    }
    CHECK(floats("", {4}).fault == TensorFault::dtype);
    // A number that no dtype here has, in the spec too.
    CHECK(Read(number(1, 20), DataType{20}, 4, {}).fault == TensorFault::dtype);
}

void other_shapes() {
    const auto refused = [](const Sizes& claimed, const Sizes& shape) {
        const Read read = floats(header(DataType::float32, claimed) + content(four), shape);
        CHECK(read.fault == TensorFault::shape);
        return read.problem.text;
    };
    CHECK(refused({2, 2}, {4}) == "shape (2, 2)");
    CHECK(refused({4}, {2, 2}) == "shape (4,)");
    CHECK(refused({}, {1}) == "shape ()");
    CHECK(refused({1}, {}) == "shape (1,)");
    CHECK(refused({4, 1}, {-1, 2}) == "shape (4, 1)");
    CHECK(refused({-1}, {-1}) == "shape (-1,)");
    CHECK(refused({-4, -1}, {-1, -1}) == "shape (-4, -1)");
    CHECK(refused({INT64_MIN}, {-1}) == "shape (-9223372036854775808,)");
    const std::int64_t half = std::int64_t{1} << 32;
    CHECK(refused({half, half}, {-1, -1}) == "shape (4294967296, 4294967296)");
    refused({half, half, 0}, {-1, -1, -1});
    refused({0, half, half}, {-1, -1, -1});
    refused({std::int64_t{1} << 61}, {-1});
    CHECK(refused(Sizes(65, 1), Sizes(65, 1)) == "a shape of 65 dimensions");
    CHECK(floats(header(DataType::float32, Sizes(64, 1)), Sizes(64, -1)).sizes == Sizes(64, 1));
    const std::string unknown = number(1, 1) + delimited(2, dims({4}) + number(3, 1)) + content(four);
    CHECK(floats(unknown, {4}).problem.text == "a shape of unknown rank");
}

void other_sizes() {
    for (std::size_t size = 1; size < 40; ++size) {
        const Read read = floats(header(DataType::float32, {4}) + content(std::string(size, 'x')), {4});
        CHECK((read.fault == TensorFault::none) == (size == 16));
        CHECK(size == 16 || read.problem.text == std::to_string(size) +
                                                     " bytes of content where shape (4,) of 4 bytes takes 16");
    }
    CHECK(floats(header(DataType::float32, {4}) + content("x") + delimited(5, four), {4}).fault == TensorFault::size);
    const Read foreign = floats(header(DataType::float32, {4}) + number(7, 5), {4});
    CHECK(foreign.fault == TensorFault::size);
    const Read odd(header(DataType::complex64, {4}) + delimited(9, four.substr(4)), DataType::complex64, 8, {4});
    CHECK(odd.fault == TensorFault::size && odd.problem.text == "3 halves of complex numbers");
}

void values_that_the_dtype_does_not_hold() {
    for (const int byte : {2, 128, 255}) {
        for (std::size_t before = 0; before < 32; ++before) {
            std::string bytes(32, '\1');
            bytes[before] = static_cast<char>(byte);
            const std::int64_t size = 32;
            const Read read(header(DataType::boolean, {size}) + content(bytes), DataType::boolean, 1, {size});
            CHECK(read.fault == TensorFault::value && read.problem.text == "the bool " + std::to_string(byte));
        }
    }
    const std::string truths = number(11, 2) + number(11, std::int64_t{1} << 40) + number(11, 0);
    CHECK(Read(header(DataType::boolean, {3}) + truths, DataType::boolean, 1, {3}).values == std::string("\1\1\0", 3));
    struct Bounds {
        DataType dtype;
        std::size_t item;
        std::uint32_t list;
        std::int64_t least, most;
    };
    for (const Bounds& bounds : {Bounds{DataType::int8, 1, 7, -128, 127}, Bounds{DataType::uint8, 1, 7, 0, 255},
                                 Bounds{DataType::int16, 2, 7, -32768, 32767}, Bounds{DataType::uint16, 2, 7, 0, 65535},
                                 Bounds{DataType::float16, 2, 13, -32768, 65535},
                                 Bounds{DataType::bfloat16, 2, 13, -32768, 65535}}) {
        for (const std::int64_t value : {bounds.least - 1, bounds.least, bounds.most, bounds.most + 1}) {
            const std::string message = header(bounds.dtype, {2}) + number(bounds.list, 1) + number(bounds.list, value);
            const Read read(message, bounds.dtype, bounds.item, {2});
            const bool within = value >= bounds.least && value <= bounds.most;
            CHECK(read.fault == (within ? TensorFault::none : TensorFault::value));
            CHECK(within || read.problem.text == "the value " + std::to_string(value));
            CHECK(!within || read.values.substr(bounds.item) == little_endian(value).substr(0, bounds.item));
        }
    }
    // The first fault is reported; later ones do not change it.
    for (const std::string& values : {delimited(7, varint(1) + varint(300) + varint(2) + varint(400) + varint(3)),
                                      number(7, 300) + number(7, 400) + number(7, 1)}) {
        const Read read(header(DataType::uint8, {5}) + values, DataType::uint8, 1, {5});
        CHECK(read.fault == TensorFault::value && read.problem.text == "the value 300");
    }
    // As protobuf: an int32 is the low half of its varint.
    const std::string wide = header(DataType::uint8, {1}) + number(7, (std::int64_t{1} << 40) + 5);
    CHECK(Read(wide, DataType::uint8, 1, {1}).values == "\5");
}

void malformed_messages() {
    const std::string whole = header(DataType::float32, {4}) + content(four);
    const std::string wrong[] = {
        std::string(1, '\0'), "\xff", tag(99, 4), tag(99, 3), delimited(5, "123"), delimited(6, "12345"),
        delimited(7, "\x80"), delimited(10, std::string(11, '\x80')), delimited(13, "\x80"), "\x22\x05x", tag(1, 0),
        delimited(2, delimited(2, number(1, 4) + delimited(2, "\xff"))), delimited(2, "\x12\x05"),
        delimited(2, delimited(2, "\x08")), delimited(2, "\x18"), tag(5, 5) + "123", tag(6, 1) + "1234567",
        delimited(16, "\x80"), tag(7, 0) + std::string(10, '\x80')};
    for (const std::string& one : wrong) {
        CHECK(floats(whole + one, {4}).fault == TensorFault::malformed);
        CHECK(floats(one + whole, {4}).fault != TensorFault::none);
    }
    std::string deep = whole;
    for (int i = 0; i < 101; ++i) deep += tag(99, 3);
    for (int i = 0; i < 101; ++i) deep += tag(99, 4);
    CHECK(floats(deep, {4}).fault == TensorFault::malformed);
}

// ---- bounds

void little_input_allocates_little_memory() {
    const auto most = static_cast<std::int64_t>(dtf::most_repeated);
    const std::int64_t huge = std::int64_t{1} << 40;
    const std::string one = delimited(5, "abcd");
    CHECK(floats(header(DataType::float32, {huge}) + one, {-1}).fault == TensorFault::size);
    CHECK(floats(header(DataType::float32, {huge}), {-1}).fault == TensorFault::size);
    CHECK(floats(header(DataType::float32, {huge}) + content("abcd"), {-1}).fault == TensorFault::size);
    CHECK(floats(header(DataType::float32, {most / 4 + 2}) + one, {-1}).fault == TensorFault::size);
    CHECK(floats(header(DataType::float32, {1, most / 4 + 2}) + one, {1, -1}).fault == TensorFault::size);
    const Read full(header(DataType::float32, {most / 4 + 2}) + one, DataType::float32, 4, {most / 4 + 2}, 4);
    CHECK(full.fault == TensorFault::full);  // the shape is specified, so the caller limits the memory
    // Repeated strings are limited whether or not the shape is specified.
    const std::string text = delimited(8, std::string(1 << 10, 'x'));
    for (const std::int64_t size : {most >> 10, huge}) {
        for (const Sizes& shape : {Sizes{-1}, Sizes{size}}) {
            CHECK(Read(header(DataType::string, {size}) + text, DataType::string, 0, shape).fault == TensorFault::size);
        }
    }
    CHECK(Read(header(DataType::string, {huge}), DataType::string, 0, {-1}).fault == TensorFault::size);
}

void values_are_repeated_up_to_the_limit() {
    const auto most = static_cast<std::int64_t>(dtf::most_repeated);
    const Read read(header(DataType::uint8, {most + 1}) + number(7, 3), DataType::uint8, 1, {-1});
    CHECK(read.fault == TensorFault::none && read.values.size() == dtf::most_repeated + 1);
    CHECK(read.values.find_first_not_of('\3') == std::string::npos);
}

void full_buffers_are_unchanged() {
    const std::string message = header(DataType::string, {2}) + delimited(8, "abc") + delimited(8, "de");
    for (std::size_t room = 0; room < 7; ++room) {
        const Read read(message, DataType::string, 0, {2}, room);
        CHECK(read.fault == (room < 5 ? TensorFault::full : TensorFault::none));
        CHECK(room < 5 || read.values == "abcde");
    }
    // If the shapes do not fit, the values are removed again.
    const Exact block(message);
    Buffer values, splits, shapes(nullptr, 0);
    dtf::TensorProblem problem;
    CHECK(!dtf::read_tensor(block.cursor(), {7, 0, {-1}}, values, &splits, &shapes, problem));
    CHECK(problem.fault == TensorFault::full && values.size() == 0 && splits.size() == 0);
    CHECK(!dtf::read_tensor(block.cursor(), {7, 0, {-1}}, values, nullptr, nullptr, problem));
    CHECK(problem.fault == TensorFault::full && values.size() == 0);
}

void buffers_that_grow_are_limited() {
    const std::string numbers = header(DataType::float32, {1000}) + delimited(5, "abcd");
    const Exact block(numbers);
    for (const std::size_t most : {std::size_t{0}, std::size_t{3999}, std::size_t{4000}, std::size_t{7999}}) {
        Buffer values, shapes;
        dtf::TensorProblem problem;
        const bool fits = dtf::read_tensor(block.cursor(), {1, 4, {-1}}, values, nullptr, &shapes, problem, most);
        CHECK(fits == (most >= 4000) && values.size() == (fits ? 4000u : 0u));
        CHECK(!dtf::read_tensor(block.cursor(), {1, 4, {-1}}, values, nullptr, &shapes, problem, most));
        CHECK(problem.fault == TensorFault::full && values.size() == (fits ? 4000u : 0u));
    }
    // A count-only buffer needs no memory and is not limited.
    Buffer counter = Buffer::counter(), shapes;
    dtf::TensorProblem problem;
    CHECK(dtf::read_tensor(block.cursor(), {1, 4, {-1}}, counter, nullptr, &shapes, problem, 0));
    CHECK(counter.size() == 4000 && counter.data() == nullptr);
    // Of strings, their ends count too.
    const std::string strings = header(DataType::string, {3}) + delimited(8, "abc");
    const Exact text(strings);
    for (const std::size_t most : {std::size_t{32}, std::size_t{33}}) {
        Buffer values, splits, sizes;
        CHECK(dtf::read_tensor(text.cursor(), {7, 0, {-1}}, values, &splits, &sizes, problem, most) == (most == 33));
    }
}

// Every cut and every flipped bit of a message is read or refused, within its bounds.
void damaged_messages_stay_within_bounds() {
    const std::string strings = header(DataType::string, {2, 2}) + delimited(8, "abc") + delimited(8, "de");
    const std::string two = delimited(13, varint(300) + varint(7));
    const std::string halves = header(DataType::float16, {2, 2}) + two + number(13, 1);
    const std::string coded = header(DataType::string, {2, 2}) + content("\1\2\3\4" "abcdefghij");
    const std::string plain = header(DataType::float32, {2, 2}) + content(four);
    std::size_t refused = 0;
    for (const std::string& message : {strings, halves, coded, plain}) {
        const auto read = [&](const std::string& mutilated) {
            for (const Sizes& shape : {Sizes{2, 2}, Sizes{-1, -1}}) {
                for (const Dtype& dtype : dtypes) refused += Read(mutilated, dtype, shape).fault != TensorFault::none;
            }
        };
        for (std::size_t cut = 0; cut < message.size(); ++cut) read(message.substr(0, cut));
        for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
            std::string flipped = message;
            flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
            read(flipped);
        }
    }
    CHECK(refused > 1000);
}

void tensors_of_a_list_are_read_one_after_the_other() {
    const Dtype& dtype = dtypes[0];
    const std::string one = header(dtype.number, {2}) + content(std::string("\1\2\3\4\5\6\7\10", 8));
    const std::string two = header(dtype.number, {3}) + content(std::string(12, 'x'));
    const std::string strings = header(DataType::string, {2}) + content(std::string("\1\0a", 3));
    const auto read = [](const std::string& list, const Sizes& splits, const dtf::TensorSpec& spec, Buffer& values,
                         Buffer* ends, Buffer* rows, Buffer* shapes, std::size_t most = SIZE_MAX) {
        const Exact block(list);
        dtf::TensorProblem problem;
        const std::size_t count =
            dtf::read_tensors(block.cursor(), splits.data(), splits.size() - 1, spec, values, ends, rows, shapes,
                              problem, most);
        return std::make_pair(count, problem.fault);
    };
    const auto size = [](const std::string& text) { return static_cast<std::int64_t>(text.size()); };
    const Sizes splits{0, size(one), size(one + two), size(one + two)};
    const dtf::TensorSpec known{static_cast<int>(dtype.number), dtype.item, {2}}, open{known.dtype, dtype.item, {-1}};

    Buffer values, rows, shapes;
    CHECK(read(one + two, splits, open, values, nullptr, &rows, &shapes) == std::make_pair(std::size_t{2}, TensorFault::dtype));
    CHECK(items<std::int64_t>(rows) == (Sizes{2, 5}) && items<std::int64_t>(shapes) == (Sizes{2, 3}));
    CHECK(values.size() == 20);

    std::string memory(16, '?');
    Buffer lent(reinterpret_cast<std::uint8_t*>(memory.data()), memory.size());
    CHECK(read(one + one, {0, size(one), 2 * size(one)}, known, lent, nullptr, nullptr, nullptr).first == 2);
    CHECK(memory == content(memory).substr(2) && memory.substr(0, 8) == memory.substr(8) && memory[0] == 1);
    Buffer less(reinterpret_cast<std::uint8_t*>(memory.data()), 15);
    CHECK(read(one + one, {0, size(one), 2 * size(one)}, known, less, nullptr, nullptr, nullptr) ==
          std::make_pair(std::size_t{1}, TensorFault::full));

    Buffer bytes, ends;
    ends.push(std::int64_t{0});
    const dtf::TensorSpec pair{static_cast<int>(DataType::string), 0, {2}};
    CHECK(read(strings + strings, {0, size(strings), 2 * size(strings)}, pair, bytes, &ends, nullptr, nullptr).first == 2);
    CHECK(text(bytes) == "aa" && items<std::int64_t>(ends) == (Sizes{0, 1, 1, 2, 2}));

    // Splits that do not lie within the values.
    for (const Sizes& wrong : {Sizes{0, size(one) + 1}, Sizes{-1, 2}, Sizes{5, 2}}) {
        Buffer none;
        CHECK(read(one, wrong, known, none, nullptr, nullptr, nullptr) ==
              std::make_pair(std::size_t{0}, TensorFault::malformed));
    }
    Buffer limited;
    CHECK(read(one + two, splits, open, limited, nullptr, nullptr, nullptr, 16) ==
          std::make_pair(std::size_t{1}, TensorFault::full));
}

const checks::Test tests[] = {
    TEST(content_is_copied_for_every_dtype),
    TEST(lists_are_read_packed_or_not_for_every_dtype),
    TEST(lists_of_any_length_are_read),
    TEST(scalars_have_no_dims),
    TEST(tensors_without_elements),
    TEST(messages_merge_as_in_protobuf),
    TEST(unknown_fields_are_passed),
    TEST(strings_are_listed),
    TEST(strings_as_content_are_sizes_and_then_bytes),
    TEST(other_dtypes),
    TEST(other_shapes),
    TEST(other_sizes),
    TEST(values_that_the_dtype_does_not_hold),
    TEST(malformed_messages),
    TEST(little_input_allocates_little_memory),
    TEST(values_are_repeated_up_to_the_limit),
    TEST(full_buffers_are_unchanged),
    TEST(buffers_that_grow_are_limited),
    TEST(damaged_messages_stay_within_bounds),
    TEST(tensors_of_a_list_are_read_one_after_the_other),
};

}  // namespace

int main() { return checks::run(tests); }
