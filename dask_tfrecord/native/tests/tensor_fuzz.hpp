// Fuzzing of tensor.hpp: tensors in any form, mutated, read in several ways that have to agree.
#pragma once

#include "fuzzing.hpp"
#include "tensor_support.hpp"

namespace fuzzing {

using dtf::TensorFault;

struct Tensor {
    const Dtype* dtype;
    Sizes sizes;
    std::string message;
};

// Values as content or as a list, packed or not, in most cases one per element.
inline std::string some_values(const Dtype& dtype, std::size_t elements, Random& random) {
    std::string bytes, fields;
    if (random.below(3) == 0) {
        for (std::size_t i = 0; i < elements && dtype.item == 0; ++i) bytes += varint(random.below(4));
        for (std::size_t i = elements * (dtype.item == 0 ? 2 : dtype.item); i > 0; --i) {
            bytes += static_cast<char>(random.below(random.below(8) == 0 ? 256 : 2));
        }
        return content(bytes);
    }
    for (std::size_t n = (random.below(3) == 0 ? random.below(elements + 2) : elements) * parts(dtype); n > 0; --n) {
        std::string value;
        if (dtype.wire_type == 0) value = varint(random.below(random.below(20) == 0 ? 1000 : 128));
        if (dtype.wire_type == 1) value = little_endian(random.next());
        if (dtype.wire_type == 2) value = varint(2) + "ab";
        if (dtype.wire_type == 5) value = little_endian(static_cast<std::uint32_t>(random.next()));
        if (dtype.wire_type != 2 && random.below(2) == 0) {
            bytes += value;
        } else {
            fields += tag(dtype.list, dtype.wire_type) + value;
        }
    }
    return bytes.empty() ? fields : fields + delimited(dtype.list, bytes);
}

inline Tensor some_tensor(Random& random) {
    Tensor tensor{&dtypes[random.below(std::size(dtypes))], {}, {}};
    std::size_t elements = 1;
    for (std::size_t rank = random.below(4); rank > 0; --rank) {
        tensor.sizes.push_back(static_cast<std::int64_t>(random.below(5)));
        elements *= static_cast<std::size_t>(tensor.sizes.back());
    }
    tensor.message = header(tensor.dtype->number, tensor.sizes) + some_values(*tensor.dtype, elements, random);
    return tensor;
}

// Result of one way to read a message.
struct ReadTensor {
    TensorFault fault;
    std::string values;
    Sizes ends, sizes;

    ReadTensor(const Exact& block, const Dtype& dtype, const Sizes& shape, dtf::Buffer&& into) {
        dtf::Buffer found(std::move(into)), splits, shapes;
        dtf::TensorProblem problem;
        const dtf::TensorSpec spec{static_cast<int>(dtype.number), dtype.item, shape};
        const bool fits = dtf::read_tensor(block.cursor(), spec, found, &splits, &shapes, problem);
        fault = fits ? TensorFault::none : problem.fault;
        values = text(found);
        ends = items<std::int64_t>(splits);
        sizes = items<std::int64_t>(shapes);
        REQUIRE(fits || (values.empty() && ends.empty() && sizes.empty() && fault != TensorFault::none));
    }

    bool operator==(const ReadTensor& other) const {
        return fault == other.fault && values == other.values && ends == other.ends && sizes == other.sizes;
    }
};

inline void check_tensor(const ReadTensor& read, const Dtype& dtype) {
    std::size_t elements = 1;
    for (const std::int64_t size : read.sizes) {
        REQUIRE(size >= 0);
        elements *= static_cast<std::size_t>(size);
    }
    if (dtype.item != 0) {
        REQUIRE(read.ends.empty() && read.values.size() == elements * dtype.item);
    } else {
        REQUIRE(read.ends.size() == elements && std::is_sorted(read.ends.begin(), read.ends.end()));
        REQUIRE(read.values.size() == (elements == 0 ? 0 : static_cast<std::size_t>(read.ends.back())));
    }
    if (dtype.number != dtf::DataType::boolean) return;
    REQUIRE(std::all_of(read.values.begin(), read.values.end(), [](char byte) { return byte == 0 || byte == 1; }));
}

// Read the tensors of a list at once, and one by one.
inline void fuzz_tensors(Random& random) {
    const Tensor first = some_tensor(random);
    const Dtype& dtype = *first.dtype;
    const Sizes shape = random.below(2) == 0 ? first.sizes : Sizes(first.sizes.size(), -1);
    std::string list;
    Sizes splits{0};
    for (std::size_t k = random.below(4); k > 0; --k) {
        Tensor tensor = random.below(4) == 0 ? some_tensor(random) : first;
        if (random.below(4) == 0) mutate(tensor.message, first.message, random);
        list += tensor.message;
        splits.push_back(static_cast<std::int64_t>(list.size()));
    }
    if (random.below(8) == 0) splits[random.below(splits.size())] = static_cast<std::int64_t>(random.next());

    const Exact block(list);
    const dtf::TensorSpec spec{static_cast<int>(dtype.number), dtype.item, shape};
    dtf::Buffer values, ends, rows, shapes;
    dtf::TensorProblem problem;
    const std::size_t count = splits.size() - 1;
    const std::size_t read = dtf::read_tensors(block.cursor(), splits.data(), count, spec, values,
                                               dtype.item == 0 ? &ends : nullptr, nullptr, &shapes, problem, SIZE_MAX);
    REQUIRE(read <= count && (read == count) == (problem.fault == TensorFault::none));
    dtf::Buffer expected, expected_ends, expected_shapes;
    for (std::size_t row = 0; row < read; ++row) {
        const auto begin = static_cast<std::size_t>(splits[row]), end = static_cast<std::size_t>(splits[row + 1]);
        const Exact one(list.substr(begin, end - begin));
        dtf::TensorProblem none;
        REQUIRE(dtf::read_tensor(one.cursor(), spec, expected, dtype.item == 0 ? &expected_ends : nullptr,
                                 &expected_shapes, none));
    }
    REQUIRE(text(values) == text(expected) && text(ends) == text(expected_ends) && text(shapes) == text(expected_shapes));
}

inline void fuzz_tensor(Random& random) {
    Tensor tensor = some_tensor(random);
    const Tensor other = some_tensor(random);
    for (std::size_t k = random.below(4); k > 0; --k) mutate(tensor.message, other.message, random);
    const Dtype& dtype = *(random.below(8) == 0 ? other : tensor).dtype;
    const Exact block(tensor.message);

    const ReadTensor open(block, dtype, Sizes(tensor.sizes.size(), -1), dtf::Buffer());
    const ReadTensor known(block, dtype, tensor.sizes, dtf::Buffer());
    const bool same_shape = open.sizes == tensor.sizes;
    if (known.fault == TensorFault::none) REQUIRE(open == known);
    if (open.fault == TensorFault::none) {
        check_tensor(open, dtype);
        REQUIRE(same_shape ? known == open : known.fault == TensorFault::shape);
    } else if (open.fault == TensorFault::malformed || open.fault == TensorFault::dtype) {
        REQUIRE(known.fault == open.fault);
    }
    if (known.fault != TensorFault::none) return;

    // Into memory of just the size it takes, and of a byte less.
    const std::size_t size = known.values.size();
    Exact memory(std::string(size, '?'));
    REQUIRE(ReadTensor(block, dtype, tensor.sizes, dtf::Buffer(memory.data(), size)) == known);
    if (size == 0) return;
    Exact less(std::string(size - 1, '?'));
    REQUIRE(ReadTensor(block, dtype, tensor.sizes, dtf::Buffer(less.data(), size - 1)).fault == TensorFault::full);
}

}  // namespace fuzzing
