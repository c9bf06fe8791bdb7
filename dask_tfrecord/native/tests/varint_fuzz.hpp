// Fuzzing of varints.hpp: bytes of real records, and lists of short values with others between them.
#pragma once

#include "fuzzing.hpp"
#include "varint_support.hpp"

namespace fuzzing {

inline void fuzz_varints(const std::string& payload, Random& random) {
    std::string packed;
    for (std::size_t n = 1 + random.below(4); n > 0; --n) {
        packed += slice_of(payload, random, 400);
        packed += random_varints(random, random.below(300), 1 + random.below(random.below(4) == 0 ? 10 : 3),
                                 random.below(4) == 0);
    }
    for (std::size_t n = random.below(4); n > 0; --n) mutate(packed, payload, random);
    bool holds;
    REQUIRE(varints_agree(packed, random.below(2) == 0 ? packed.size() : random.below(packed.size() + 1), holds));
}

}  // namespace fuzzing
