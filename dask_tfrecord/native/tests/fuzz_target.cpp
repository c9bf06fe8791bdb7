// The target of libFuzzer and ClusterFuzzLite: bytes as a payload, and as a block of records, through the native core.
//
// The first eight bytes choose columns and message, so that an input says all that its execution depends on.
#include "column_fuzz.hpp"
#include "message_fuzz.hpp"
#include "varint_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace fuzzing;
    if (size < 8 || size > 40000) return 0;
    Random random(dtf::load<std::uint64_t>(data));
    const std::string payload(reinterpret_cast<const char*>(data) + 8, size - 8);
    constexpr Message messages[] = {Message::example, Message::sequence_example, Message::example_list};
    const Message message = messages[random.below(std::size(messages))];
    const Specs specs = some_columns(made_sample(message, random.below(12)), random);
    const bool closed = random.below(4) == 0;
    check_alone(specs, framed(payload), true, closed, message);
    check_alone(specs, payload, false, closed, message);
    fuzz_messages(payload, random);
    fuzz_varints(payload, random);
    return 0;
}
