// Decoder of any protobuf message, driven by field tables. Accepts the same bytes as protobuf (upb).
//
// Fields of singular messages share the rows of the list around them: the records, or the items of a repeated message.
// The columns of a list are filled with defaults some rows ahead, so that a field only overwrites its place. Bytes values
// are kept as spans of the record until it ends, so that the last one on the wire wins.
//
// Specification: https://protobuf.dev/programming-guides/encoding/ and
// https://github.com/protocolbuffers/protobuf/blob/main/upb/wire/decode.c
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "columns.hpp"
#include "message.hpp"
#include "records.hpp"

namespace dtf {

struct MessageProblem {
    Fault fault = Fault::none;
    int table = -1;             // of the innermost message, or -1
    int field = -1;             // index in the table, or -1
    std::uint32_t number = 0;   // of the field on the wire, or 0
    int column = -1;            // that is full, or -1
    std::uint64_t offset = 0;   // byte in the record where the field starts
    std::string expected, found;
};

// Bytes of a record, or of a default.
struct Span {
    const std::uint8_t* data;
    std::size_t size;
};

struct MessageList;

// Values of one field, presence or oneof: one for each row of its list.
struct MessageColumn {
    bool bytes = false;
    bool counted = false;     // values are not kept
    bool hidden = false;      // values are needed within the record only
    std::size_t width = 0;    // of a row in `slots`
    std::string blank;        // a row without value
    std::string default_value;
    MessageList* list = nullptr;
    Buffer slots;             // numbers, or spans of the rows from `base` on
    std::size_t base = 0;     // rows whose bytes are stored
    Buffer content, value_splits;  // bytes
    std::size_t content_start = 0;  // size of the content before the record

    DTF_INLINE std::uint8_t* place(std::size_t row) { return slots.data() + (row - base) * width; }
    // The buffer of the values that are given to the caller.
    Buffer& values() { return bytes ? content : slots; }
};

// Items of a repeated field, or the records.
struct MessageList {
    std::size_t rows = 0;
    std::size_t ready = 0;   // rows that the columns have places for
    std::size_t start = 0;   // rows before the record
    std::size_t first = 0;   // rows before the row of the list around it
    bool numbers = false;    // values of a repeated scalar: places need no default
    MessageColumn* key = nullptr;        // of a map
    std::vector<MessageColumn*> columns;
    std::vector<MessageList*> lists;     // within a row
    Buffer splits;                       // by rows of the list around it

    std::size_t begin_of(std::size_t row) const { return static_cast<std::size_t>(splits.at<std::int64_t>(row)); }
};

class MessageDecoder : public RecordDecoder<MessageDecoder> {
public:
    MessageDecoder(std::vector<MessageTable> tables, std::size_t ncolumns, std::size_t nsplits, bool check_crc,
                   const std::vector<std::size_t>& counted = {})
        : RecordDecoder(check_crc), specs_(std::move(tables)), columns_(ncolumns), splits_(nsplits), tables_(specs_.size()) {
        check_tables(specs_, ncolumns, nsplits);
        for (const std::size_t column : counted) {
            if (column >= ncolumns) throw std::invalid_argument("a counted column is out of range");
            columns_[column].counted = true;
            columns_[column].content = Buffer::counter();
        }
        root_ = add_list(nullptr);
        tables_[0].list = root_;
        for (std::size_t i = 0; i < specs_.size(); ++i) compile(i);
        for (const MessageColumn& column : columns_) {
            if (!column.counted) continue;
            if (!column.bytes && !column.list->numbers) {
                throw std::invalid_argument("only columns of bytes or of repeated numbers can be counted");
            }
        }
    }

    MessageDecoder(const MessageDecoder&) = delete;  // parts refer to each other
    MessageDecoder& operator=(const MessageDecoder&) = delete;

    std::deque<MessageColumn>& columns() { return columns_; }
    std::vector<MessageList*>& splits() { return splits_; }
    const MessageList& root() const { return *root_; }
    // Return whether a column has one number for each record.
    bool is_dense(const MessageColumn& column) const { return column.list == root_ && !column.bytes; }
    // Return whether values of rows of different sizes are kept.
    bool is_ragged(const MessageColumn& column) const { return !is_dense(column) && !column.counted; }
    static std::size_t row_size(const MessageColumn& column) { return column.width; }
    static bool is_aligned(const MessageColumn&) { return false; }  // numbers are stored byte by byte
    static Buffer& values(MessageColumn& column) { return column.values(); }
    const MessageProblem& problem() const { return problem_; }
    std::uint64_t unknown_fields() const { return unknown_; }
    void set_memory_limit(std::size_t most) { most_ = most; }

    // Allocate memory for about `factor` times the values decoded so far.
    void preallocate(double factor) {
        for (MessageColumn& column : columns_) {
            if (!column.bytes) column.slots.preallocate(factor);
            column.content.preallocate(factor);
            column.value_splits.preallocate(factor);
        }
        for (MessageList& list : lists_) list.splits.preallocate(factor);
    }

    // Decode a message without a frame; false if it is refused.
    bool take(Cursor payload) {
        if (problem_.fault != Fault::none) problem_ = MessageProblem{};
        record_ = payload.here();
        const std::uint64_t unknown = unknown_;
        if (begin_row(*root_) && message(tables_[0], payload, 0, 0)) {
            end_row(*root_);
            if (store_bytes()) {
                for (MessageList& list : lists_) list.start = list.rows;
                return true;
            }
        }
        unknown_ = unknown;
        undo();
        return false;
    }

private:
    // Kind of a field, by its type and wire type.
    enum class Type : std::uint8_t {
        unknown,
        end_group,
        bad,
        skip,
        varint32,
        varint64,
        zigzag32,
        zigzag64,
        boolean,
        enumeration,  // a closed one
        fixed32,
        fixed64,
        bytes,
        message,
        raw,  // a message that is not decoded
    };

    enum class Cardinality : std::uint8_t { one, many, packed };

    // A type and a cardinality in one byte, which is the type alone for one value: a single switch finds most fields.
    struct Action {
        Action(Type type = Type::unknown, Cardinality cardinality = Cardinality::one)
            : code(static_cast<std::uint8_t>(static_cast<int>(type) | static_cast<int>(cardinality) << 4)) {}
        Type type() const { return static_cast<Type>(code & 15); }
        Cardinality cardinality() const { return static_cast<Cardinality>(code >> 4); }

        std::uint8_t code;
    };

    struct Table;

    // A field of a table.
    struct Op {
        Action actions[8] = {{}, {}, {}, {}, Type::end_group, {}, Type::bad, Type::bad};  // by wire type
        // Bytes of the usual tag, of one or two bytes, and the field that is likely to follow.
        std::uint16_t tag_bytes = 1, tag_mask = 0;  // no bytes are equal
        std::uint8_t tag_size = 0;
        Action usual;
        std::uint16_t next = 0;
        std::uint32_t number = 0;
        int index = -1;        // of the field in the table
        bool marked = false;   // has a presence, or is in a oneof
        bool utf8 = false;
        bool dense = false;    // `numbers` of the enum are all from `lowest` to `highest`
        std::int32_t lowest = 0, highest = 0;
        const std::vector<std::int32_t>* numbers = nullptr;
        MessageColumn* column = nullptr;
        MessageColumn* presence = nullptr;
        MessageColumn* set = nullptr;  // number of the member that is set
        MessageList* list = nullptr;   // of a repeated field
        Table* table = nullptr;        // of a message
    };

    struct Table {
        int index = 0;
        bool entry = false;  // of a map
        MessageList* list = nullptr;
        std::vector<Op> ops;             // the first skips unknown fields
        std::vector<std::uint16_t> by_number;
        std::vector<std::pair<std::uint32_t, std::uint16_t>> others;  // by larger numbers, ascending
        std::vector<MessageColumn*> oneofs;

        DTF_INLINE const Op& find(std::uint32_t number) const {
            return ops[number < by_number.size() ? by_number[number] : find_other(number)];
        }

        DTF_APART std::uint16_t find_other(std::uint32_t number) const {
            const auto found = std::lower_bound(others.begin(), others.end(), std::make_pair(number, std::uint16_t{0}));
            return found != others.end() && found->first == number ? found->second : 0;
        }
    };

    static constexpr std::size_t max_depth = Cursor::max_depth;
    static constexpr std::uint32_t most_dense = 1024;  // numbers of fields that are found by index

    // ---- construction

    MessageList* add_list(MessageList* around) {
        lists_.emplace_back();
        MessageList* list = &lists_.back();
        if (around == nullptr) return list;
        list->splits.push(std::int64_t{0});
        around->lists.push_back(list);
        return list;
    }

    // Set up a column of numbers, a hidden one if `index` is -1.
    MessageColumn* add_numbers(int index, std::size_t width, const std::string& blank, MessageList* list) {
        if (index < 0) hidden_.emplace_back();
        MessageColumn* column = index < 0 ? &hidden_.back() : &columns_[static_cast<std::size_t>(index)];
        column->hidden = index < 0;
        column->width = width;
        column->blank = blank.empty() ? std::string(width, '\0') : blank;
        column->list = list;
        list->columns.push_back(column);
        return column;
    }

    MessageColumn* add_bytes(int index, const std::string& blank, MessageList* list) {
        MessageColumn* column = add_numbers(index, sizeof(Span), std::string(sizeof(Span), '\0'), list);
        column->bytes = true;
        column->default_value = blank;
        const Span span{reinterpret_cast<const std::uint8_t*>(column->default_value.data()), blank.size()};
        std::memcpy(column->blank.data(), &span, sizeof span);
        column->value_splits.push(std::int64_t{0});
        texts_.push_back(column);
        return column;
    }

    void compile(std::size_t index) {
        const MessageTable& spec = specs_[index];
        Table& table = tables_[index];
        table.index = static_cast<int>(index);
        for (const int column : spec.oneofs) table.oneofs.push_back(add_numbers(column, 4, {}, table.list));
        if (spec.fields.size() >= UINT16_MAX) throw std::invalid_argument("a table has too many fields");
        table.ops.resize(1 + spec.fields.size());
        for (std::size_t i = 0; i < spec.fields.size(); ++i) {
            const std::uint32_t number = spec.fields[i].number;
            table.ops[i + 1] = op_of(spec.fields[i], table);
            table.ops[i + 1].index = static_cast<int>(i);
            const auto at = static_cast<std::uint16_t>(i + 1);
            if (number < most_dense) {
                if (table.by_number.size() <= number) table.by_number.resize(number + 1);
                table.by_number[number] = at;
            } else {
                table.others.emplace_back(number, at);
            }
        }
        std::sort(table.others.begin(), table.others.end());
        for (std::size_t i = 0; i < spec.fields.size(); ++i) expect(spec.fields[i], i + 1, table.ops);
        if (!spec.fields.empty()) table.ops[0].next = 1;
    }

    // Set the tag that a field usually has; the fields usually follow each other as in the table.
    static void expect(const MessageField& field, std::size_t at, std::vector<Op>& ops) {
        constexpr std::uint32_t most_short = (1u << 11) - 1;  // numbers whose tag takes at most two bytes
        Op& op = ops[at];
        const bool packed = field.repeated && field.packed && !is_bytes(field);
        op.next = static_cast<std::uint16_t>((field.repeated && !packed) || at + 1 == ops.size() ? at : at + 1);
        if (field.number > most_short) return;
        const WireType wire_type = packed ? WireType::delimited : wire_type_of(field.type);
        const std::uint32_t tag = tag_of(field.number, wire_type);
        op.usual = op.actions[static_cast<std::size_t>(wire_type)];
        op.tag_size = tag < 0x80 ? 1 : 2;
        op.tag_bytes = static_cast<std::uint16_t>(tag < 0x80 ? tag : ((tag & 0x7f) | 0x80 | tag >> 7 << 8));
        op.tag_mask = tag < 0x80 ? 0xff : 0xffff;
    }

    Op op_of(const MessageField& field, Table& table) {
        Op op;
        op.number = field.number;
        op.utf8 = field.utf8;
        MessageList* list = table.list;
        if (field.presence >= 0) op.presence = add_numbers(field.presence, 1, {}, list);
        if (field.oneof >= 0) op.set = table.oneofs[static_cast<std::size_t>(field.oneof)];
        op.marked = op.presence != nullptr || op.set != nullptr;
        if (field.numbers) {
            op.numbers = &*field.numbers;
            if (!op.numbers->empty()) {
                op.lowest = op.numbers->front();
                op.highest = op.numbers->back();
                const std::int64_t span = std::int64_t{op.highest} - op.lowest;
                op.dense = span + 1 == static_cast<std::int64_t>(op.numbers->size());
            }
        }
        const bool key = table.entry && field.number == 1;
        const bool wanted = field.column >= 0 || field.message >= 0 || field.splits >= 0 || key;
        if (field.repeated && wanted) {
            list = op.list = add_list(table.list);
            list->numbers = !is_message(field.type) || field.message < 0;
            if (field.splits >= 0) splits_[static_cast<std::size_t>(field.splits)] = list;
        }
        if (field.message >= 0) {
            op.table = &tables_[static_cast<std::size_t>(field.message)];
            op.table->list = list;
            op.table->entry = field.is_map;
        }
        if (field.column >= 0 || key) {
            op.column = is_bytes(field) ? add_bytes(field.column, field.default_value, list)
                                        : add_numbers(field.column, width_of(field.type), field.default_value, list);
            if (key) list->key = op.column;
        }
        // an unknown number of an enum makes a map entry unknown, wanted or not
        set_actions(field, op, wanted, op.marked || (table.entry && op.numbers != nullptr));
        return op;
    }

    static void set_actions(const MessageField& field, Op& op, bool wanted, bool checked) {
        const auto at = [&op](WireType type) -> Action& { return op.actions[static_cast<std::size_t>(type)]; };
        const bool many = field.repeated && wanted, reads = wanted || (checked && !is_message(field.type));
        const Type type = reads ? type_of(field, op) : Type::skip;
        if (field.repeated && !is_bytes(field)) {
            at(WireType::delimited) = many ? Action{type, Cardinality::packed} : Action{Type::skip};
        }
        at(wire_type_of(field.type)) = {type, many ? Cardinality::many : Cardinality::one};
    }

    static Type type_of(const MessageField& field, const Op& op) {
        switch (field.type) {
            case FieldType::float64:
            case FieldType::fixed64:
            case FieldType::sfixed64: return Type::fixed64;
            case FieldType::float32:
            case FieldType::fixed32:
            case FieldType::sfixed32: return Type::fixed32;
            case FieldType::int64:
            case FieldType::uint64: return Type::varint64;
            case FieldType::sint64: return Type::zigzag64;
            case FieldType::sint32: return Type::zigzag32;
            case FieldType::boolean: return Type::boolean;
            case FieldType::enumeration: return op.numbers != nullptr ? Type::enumeration : Type::varint32;
            case FieldType::string:
            case FieldType::bytes: return Type::bytes;
            case FieldType::message:
            case FieldType::group: return op.table != nullptr ? Type::message : Type::raw;
            default: return Type::varint32;
        }
    }

    // ---- rows

    // Make places for at least `need` more rows; false if a column is full.
    DTF_APART bool prepare(MessageList& list, std::size_t need) {
        std::size_t more = std::min<std::size_t>(std::max<std::size_t>(list.rows / 2, 16), 4096);
        more = std::max(more, need);
        for (MessageColumn* column : list.columns) {
            Buffer& slots = column->slots;
            slots.truncate((list.ready - column->base) * column->width);
            std::size_t room = slots.room() / column->width;
            // offered memory is used up before memory of the column
            const bool grows = !slots.borrowed() || (slots.moves() && room < need);
            if (grows) room = slots.size() < most_ ? (most_ - slots.size()) / column->width : 0;
            if (room < need) return full(column);
            more = std::min(more, room);
        }
        for (const MessageList* inner : list.lists) {
            if (inner->splits.over(most_, more * sizeof(std::int64_t))) return full(nullptr);
        }
        for (MessageColumn* column : list.columns) {
            std::uint8_t* place = column->slots.grow(more * column->width);
            if (place == nullptr) return full(column);
            if (!list.numbers) fill(place, more, column->blank);
        }
        list.ready += more;
        return true;
    }

    static void fill(std::uint8_t* place, std::size_t rows, const std::string& blank) {
        if (blank.find_first_not_of('\0') == std::string::npos) {
            std::memset(place, 0, rows * blank.size());
            return;
        }
        for (std::size_t row = 0; row < rows; ++row) std::memcpy(place + row * blank.size(), blank.data(), blank.size());
    }

    bool full(const MessageColumn* column) {
        problem_.fault = Fault::full;
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            if (&columns_[i] == column) problem_.column = static_cast<int>(i);
        }
        return false;
    }

    DTF_INLINE bool begin_row(MessageList& list) { return list.rows < list.ready || prepare(list, 1); }

    DTF_INLINE bool make_room(MessageList& list, std::size_t n) {
        return n <= list.ready - list.rows || prepare(list, n - (list.ready - list.rows));
    }

    DTF_INLINE void end_row(MessageList& list) {
        for (MessageList* inner : list.lists) {
            if (inner->key != nullptr && inner->rows - inner->first > 1) keep_last(*inner);
            inner->splits.push(static_cast<std::int64_t>(inner->rows));
            inner->first = inner->rows;
        }
        ++list.rows;
    }

    // Discard the rows from `rows` on, and what they hold.
    void truncate(MessageList& list, std::size_t rows) {
        list.rows = rows;
        list.ready = std::min(list.ready, rows);
        for (MessageList* inner : list.lists) {
            truncate(*inner, inner->begin_of(rows));
            inner->splits.truncate((rows + 1) * sizeof(std::int64_t));
            inner->first = inner->rows;
        }
    }

    void undo() {
        truncate(*root_, root_->start);
        for (MessageColumn* column : texts_) {
            column->content.truncate(column->content_start);
            column->value_splits.truncate((column->base + 1) * sizeof(std::int64_t));
        }
    }

    // Store the bytes that the record's spans refer to; false if a column is full.
    bool store_bytes() {
        for (MessageColumn* column : texts_) {
            if (!store_bytes(*column)) return full(column);
        }
        for (MessageColumn* column : texts_) {
            // the places of the next record are the first again
            const std::size_t rows = column->list->rows;
            if (column->list->numbers) {
                column->list->ready = rows;
            } else {
                fill(column->slots.data(), rows - column->base, column->blank);
            }
            column->base = rows;
            column->content_start = column->content.size();
        }
        if (!joined_.empty()) joined_.clear();
        return true;
    }

    bool store_bytes(MessageColumn& column) {
        if (column.hidden) return true;
        const std::size_t rows = column.list->rows - column.base;
        std::size_t total = 0;
        for (std::size_t i = 0; i < rows; ++i) total += column.slots.at<Span>(i).size;
        Buffer& content = column.content;
        Buffer& splits = column.value_splits;
        if (content.over(most_, total) || splits.over(most_, rows * sizeof(std::int64_t))) return false;
        std::size_t end = content.size();
        if (!content.reserve(total) || !splits.reserve(rows * sizeof(std::int64_t))) return false;
        for (std::size_t i = 0; i < rows; ++i) {
            const Span span = column.slots.at<Span>(i);
            content.append(span.data, span.size);
            end += span.size;
            splits.push(static_cast<std::int64_t>(end));
        }
        return true;
    }

    // Erase the entries of a map that a later one of the same key replaces.
    DTF_APART void keep_last(MessageList& map) {
        if (!map.key->bytes && ascends(map)) return;
        const std::size_t count = map.rows - map.first;
        std::vector<std::size_t> order(count);
        for (std::size_t i = 0; i < count; ++i) order[i] = map.first + i;
        const auto key = [&map](std::size_t row) {
            const std::uint8_t* place = map.key->place(row);
            if (!map.key->bytes) return std::string_view(reinterpret_cast<const char*>(place), map.key->width);
            const Span span = load<Span>(place);
            return std::string_view(reinterpret_cast<const char*>(span.data), span.size);
        };
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
        std::vector<bool> keep(count, true);
        bool all = true;
        for (std::size_t i = 1; i < count; ++i) {
            if (key(order[i - 1]) != key(order[i])) continue;
            keep[order[i - 1] - map.first] = false;
            all = false;
        }
        if (!all) erase(map, map.first, keep);
    }

    // Return whether the integer keys of a map ascend, as writers sort them.
    static bool ascends(const MessageList& map) {
        std::uint64_t before = 0;
        for (std::size_t row = map.first; row < map.rows; ++row) {
            const std::uint8_t* place = map.key->place(row);
            const std::uint64_t key = map.key->width == 8   ? load<std::uint64_t>(place)
                                      : map.key->width == 4 ? load<std::uint32_t>(place)
                                                            : *place;
            if (row > map.first && key <= before) return false;
            before = key;
        }
        return true;
    }

    // Keep some of the rows from `first` on.
    void erase(MessageList& list, std::size_t first, const std::vector<bool>& keep) {
        for (MessageList* inner : list.lists) {
            std::vector<bool> keep_inner;
            const std::size_t begin = inner->begin_of(first);
            std::vector<std::int64_t> ends;
            std::size_t end = begin;
            for (std::size_t i = 0; i < keep.size(); ++i) {
                const std::size_t size = inner->begin_of(first + i + 1) - inner->begin_of(first + i);
                keep_inner.insert(keep_inner.end(), size, keep[i]);
                if (!keep[i]) continue;
                end += size;
                ends.push_back(static_cast<std::int64_t>(end));
            }
            erase(*inner, begin, keep_inner);
            inner->splits.truncate((first + 1) * sizeof(std::int64_t));
            for (const std::int64_t split : ends) inner->splits.push(split);
            inner->first = inner->rows;
        }
        for (MessageColumn* column : list.columns) {
            if (list.numbers && column->counted && !column->bytes) continue;
            std::size_t to = first;
            for (std::size_t i = 0; i < keep.size(); ++i) {
                if (!keep[i]) continue;
                if (to != first + i) std::memcpy(column->place(to), column->place(first + i), column->width);
                ++to;
            }
        }
        list.rows = first + static_cast<std::size_t>(std::count(keep.begin(), keep.end(), true));
        list.ready = list.rows;
    }

    // ---- oneofs and presence

    // Note that a field is set, and clear the member of its oneof that was set before.
    DTF_APART void mark(const Table& table, const Op& op, std::size_t row) {
        if (op.set != nullptr) {
            std::uint8_t* place = op.set->place(row);
            const auto before = load<std::uint32_t>(place);
            if (before != op.number) {
                if (before != 0) clear(table.find(before), row);
                std::memcpy(place, &op.number, sizeof op.number);
            }
        }
        if (op.presence != nullptr) *op.presence->place(row) = 1;
    }

    // Discard the value of a field.
    void clear(const Op& op, std::size_t row) {
        if (op.presence != nullptr) *op.presence->place(row) = 0;
        if (op.list != nullptr) {
            truncate(*op.list, op.list->first);
            return;
        }
        if (op.column != nullptr) std::memcpy(op.column->place(row), op.column->blank.data(), op.column->width);
        if (op.table == nullptr) return;
        for (MessageColumn* set : op.table->oneofs) std::memset(set->place(row), 0, set->width);
        for (const Op& inner : op.table->ops) clear(inner, row);
    }

    // ---- wire format

    // Numbers: as stored, and from the wire.
    template <class T>
    struct Fixed {
        using Stored = T;
        static constexpr bool fixed = true, closed = false;
    };
    template <class T>
    struct Varint {
        using Stored = T;
        static constexpr bool fixed = false, closed = false;
        static T of(std::uint64_t value) { return static_cast<T>(value); }
    };
    struct Enumeration : Varint<std::uint32_t> {
        static constexpr bool closed = true;
    };
    template <class T>
    struct Zigzag : Varint<T> {
        static T of(std::uint64_t value) {
            const auto low = static_cast<T>(value);
            return low >> 1 ^ (T{0} - (low & 1));
        }
    };
    struct Boolean : Varint<std::uint8_t> {
        static std::uint8_t of(std::uint64_t value) { return value != 0; }
    };

    template <class T>
    DTF_INLINE static void put(std::uint8_t* place, T value) {
        std::memcpy(place, &value, sizeof value);
    }

    // Position of a field: where errors are.
    struct Place {
        const Table& table;
        const Op& op;
        const std::uint8_t* at;
        std::uint32_t tag;

        bool is_group() const { return (tag & 7) == static_cast<std::uint32_t>(WireType::group); }
    };

    // Decode the fields of a message until its end, or until the end of the group with that number.
    bool message(const Table& table, Cursor& in, std::uint32_t group, std::size_t level) {
        const std::size_t row = table.list->rows;
        const Op* const ops = table.ops.data();
        const Op* next = ops + ops->next;
        bool odd = false;
        while (!in.empty()) {
            const std::uint8_t* const at = in.here();
            std::uint32_t tag;
            const Op* found = next;
            Action action = found->usual;
            if (in.left() >= 2 && (load<std::uint16_t>(at) & found->tag_mask) == found->tag_bytes) {
                in.take(found->tag_size);
                tag = found->number << 3 | (*at & 7);
            } else {
                if (!in.tag(tag)) return bad_tag(table, at, in.here());
                found = &table.find(tag >> 3);
                action = found->actions[tag & 7];
            }
            const Op& op = *found;
            next = ops + op.next;
            const Place place{table, op, at, tag};
            switch (static_cast<Type>(action.code)) {
                case Type::unknown:
                    odd = true;
                    ++unknown_;
                    if (!in.skip<true>(tag, level)) return bad_skip(place);
                    break;
                case Type::end_group:
                    if (group != tag >> 3) return bad_end(place, group);
                    odd_ = odd;
                    return true;
                case Type::bad: return bad_wire_type(place);
                case Type::skip:
                    if (op.marked) mark(table, op, row);
                    if (!in.skip<true>(tag, level)) return bad_skip(place);
                    break;
                case Type::varint32: if (!one<Varint<std::uint32_t>>(place, in, row, odd)) return false; break;
                case Type::varint64: if (!one<Varint<std::uint64_t>>(place, in, row, odd)) return false; break;
                case Type::zigzag32: if (!one<Zigzag<std::uint32_t>>(place, in, row, odd)) return false; break;
                case Type::zigzag64: if (!one<Zigzag<std::uint64_t>>(place, in, row, odd)) return false; break;
                case Type::boolean: if (!one<Boolean>(place, in, row, odd)) return false; break;
                case Type::enumeration: if (!one<Enumeration>(place, in, row, odd)) return false; break;
                case Type::fixed32: if (!one<Fixed<std::uint32_t>>(place, in, row, odd)) return false; break;
                case Type::fixed64: if (!one<Fixed<std::uint64_t>>(place, in, row, odd)) return false; break;
                case Type::bytes: if (!one_bytes(place, in, row)) return false; break;
                case Type::message: if (!one_message(place, in, row, level)) return false; break;
                case Type::raw: if (!one_raw(place, in, row, level)) return false; break;
                default:
                    if (action.type() != Type::message) {
                        if (!items(place, in, level, action, odd)) return false;
                    } else if (!item(place, in, level)) {
                        return false;
                    }
            }
        }
        if (group != 0) return no_end(table, in.here(), group);
        odd_ = odd;
        return true;
    }

    // ---- numbers

    template <class Number>
    DTF_INLINE bool one(const Place& place, Cursor& in, std::size_t row, bool& odd) {
        typename Number::Stored value{};
        if (!read<Number>(place, in, value)) return false;
        if (Number::closed && !is_known(place.op, value)) return pass(odd);
        if (place.op.marked) mark(place.table, place.op, row);
        if (place.op.column != nullptr) put(place.op.column->slots.data() + row * sizeof value, value);
        return true;
    }

    // One of the numbers of a list, or packed ones.
    template <class Number>
    bool many(const Place& place, Cursor& in, bool is_packed, bool& odd) {
        if (is_packed) return packed<Number>(place, in, odd);
        typename Number::Stored value{};
        if (!read<Number>(place, in, value)) return false;
        return Number::closed && !is_known(place.op, value) ? pass(odd) : add(place.op, value);
    }

    // Count an unknown number of an enum.
    DTF_APART bool pass(bool& odd) {
        odd = true;
        ++unknown_;
        return true;
    }

    template <class Number>
    DTF_INLINE bool read(const Place& place, Cursor& in, typename Number::Stored& value) {
        if constexpr (Number::fixed) {
            const std::uint8_t* bits = in.take(sizeof value);
            if (bits == nullptr) return bad_size(place, sizeof value, in.left());
            value = load<typename Number::Stored>(bits);
        } else {
            std::uint64_t bits;
            const Cursor before = in;
            if (in.empty() || !in.varint_at_once(bits)) return bad_varint(place, before, varints::longest);
            value = Number::of(bits);
        }
        return true;
    }

    DTF_APART static bool is_known(const Op& op, std::uint64_t value) {
        const auto number = static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
        if (op.dense) return number >= op.lowest && number <= op.highest;
        return std::binary_search(op.numbers->begin(), op.numbers->end(), number);
    }

    // Return whether a number of this list is kept.
    DTF_INLINE static bool keeps(const Op& op) { return op.column != nullptr && !op.column->counted; }

    template <class T>
    DTF_INLINE bool add(const Op& op, T value) {
        MessageList& list = *op.list;
        if (keeps(op)) {
            if (!begin_row(list)) return false;
            put(op.column->slots.data() + list.rows * sizeof(T), value);
        }
        ++list.rows;
        return true;
    }

    template <class Number>
    bool packed(const Place& place, Cursor& in, bool& odd) {
        using Stored = typename Number::Stored;
        Cursor inside(in.here(), 0);
        const Cursor before = in;
        if (!in.delimited(inside)) return bad_delimited(place, before);
        MessageList& list = *place.op.list;
        if constexpr (Number::fixed) {
            const std::size_t size = inside.left(), count = size / sizeof(Stored);
            if (size % sizeof(Stored) != 0) return bad_packed(place, sizeof(Stored), size);
            if (keeps(place.op) && count > 0) {
                if (!make_room(list, count)) return false;
                std::memcpy(place.op.column->slots.data() + list.rows * sizeof(Stored), inside.here(), size);
            }
            list.rows += count;
            return true;
        } else {
            return packed_varints<Number>(place, inside, list, odd);
        }
    }

    template <class Number>
    bool packed_varints(const Place& place, Cursor inside, MessageList& list, bool& odd) {
        using Stored = typename Number::Stored;
        constexpr std::size_t some = 512;
        std::int64_t values[some];
        const Cursor all = inside;
        std::size_t count = 0;
        if (!Number::closed && !keeps(place.op)) {
            if (!inside.count_varints(count)) return bad_packed_varint(place, all);
            list.rows += count;
        }
        for (; !inside.empty(); count = 0) {
            if (!inside.varints(values, some, count)) return bad_packed_varint(place, all);
            if (!Number::closed && !make_room(list, count)) return false;
            for (std::size_t i = 0; i < count; ++i) {
                const Stored value = Number::of(static_cast<std::uint64_t>(values[i]));
                if constexpr (Number::closed) {
                    if (!(is_known(place.op, value) ? add(place.op, value) : pass(odd))) return false;
                } else {
                    put(place.op.column->slots.data() + (list.rows + i) * sizeof value, value);
                }
            }
            if (!Number::closed) list.rows += count;
        }
        return true;
    }

    // ---- items of a list

    // Add an item that is not a message to a list, or packed items.
    DTF_APART bool items(const Place& place, Cursor& in, std::size_t level, Action action, bool& odd) {
        const bool is_packed = action.cardinality() == Cardinality::packed;
        Cursor value(in.here(), 0);
        switch (action.type()) {
            case Type::varint32: return many<Varint<std::uint32_t>>(place, in, is_packed, odd);
            case Type::varint64: return many<Varint<std::uint64_t>>(place, in, is_packed, odd);
            case Type::zigzag32: return many<Zigzag<std::uint32_t>>(place, in, is_packed, odd);
            case Type::zigzag64: return many<Zigzag<std::uint64_t>>(place, in, is_packed, odd);
            case Type::boolean: return many<Boolean>(place, in, is_packed, odd);
            case Type::enumeration: return many<Enumeration>(place, in, is_packed, odd);
            case Type::fixed32: return many<Fixed<std::uint32_t>>(place, in, is_packed, odd);
            case Type::fixed64: return many<Fixed<std::uint64_t>>(place, in, is_packed, odd);
            case Type::bytes: return bytes(place, in, value) && add_span(place.op, value);
            default: return raw(place, in, level, value) && add_span(place.op, value);
        }
    }

    // ---- bytes and messages

    DTF_INLINE bool bytes(const Place& place, Cursor& in, Cursor& value) {
        const Cursor before = in;
        if (!in.delimited(value)) return bad_delimited(place, before);
        return !place.op.utf8 || is_utf8(value.here(), value.left()) || bad_text(place);
    }

    DTF_INLINE bool one_bytes(const Place& place, Cursor& in, std::size_t row) {
        Cursor value(in.here(), 0);
        if (!bytes(place, in, value)) return false;
        if (place.op.marked) mark(place.table, place.op, row);
        if (place.op.column != nullptr) put(place.op.column->place(row), Span{value.here(), value.left()});
        return true;
    }

    bool add_span(const Op& op, Cursor value) {
        MessageList& list = *op.list;
        if (op.column != nullptr) {
            if (!begin_row(list)) return false;
            put(op.column->place(list.rows), Span{value.here(), value.left()});
        }
        ++list.rows;
        return true;
    }

    // Decode the fields of a message or group.
    DTF_INLINE bool fields(const Place& place, Cursor& in, std::size_t level) {
        if (level == max_depth) return too_deep(place);
        if (place.is_group()) return message(*place.op.table, in, place.op.number, level + 1);
        Cursor inside(in.here(), 0);
        const Cursor before = in;
        if (!in.delimited(inside)) return bad_delimited(place, before);
        return message(*place.op.table, inside, 0, level + 1);
    }

    // A singular message: its fields, and its bytes where they are wanted too.
    bool one_message(const Place& place, Cursor& in, std::size_t row, std::size_t level) {
        if (place.op.marked) mark(place.table, place.op, row);
        Cursor again = in;
        if (!fields(place, in, level)) return false;
        return place.op.column == nullptr || one_raw(place, again, row, level);
    }

    // An item of a repeated message.
    DTF_INLINE bool item(const Place& place, Cursor& in, std::size_t level) {
        MessageList& list = *place.op.list;
        const std::uint64_t unknown = unknown_;
        if (!begin_row(list)) return false;
        Cursor again = in;
        if (!fields(place, in, level)) return false;
        if (odd_ && list.key != nullptr) {
            truncate(list, list.rows);  // to protobuf, an entry with unknown fields is unknown as a whole
            unknown_ = unknown + 1;
            return true;
        }
        if (place.op.column != nullptr) {
            Cursor value(again.here(), 0);
            if (!raw(place, again, level, value)) return false;
            put(place.op.column->place(list.rows), Span{value.here(), value.left()});
        }
        end_row(list);
        return true;
    }

    // The bytes of a message. It has to be legal although they are kept: fields, of any numbers.
    bool raw(const Place& place, Cursor& in, std::size_t level, Cursor& value) {
        if (level == max_depth) return too_deep(place);
        const Cursor before = in;
        const std::uint32_t group = place.is_group() ? place.op.number : 0;
        if (group == 0 && !in.delimited(value)) return bad_delimited(place, before);
        Cursor inside = group == 0 ? value : in;
        while (!inside.empty()) {
            const std::uint8_t* const at = inside.here();
            std::uint32_t tag;
            if (!inside.tag(tag)) return bad_tag(place.table, at, inside.here());
            if ((tag & 7) == static_cast<std::uint32_t>(WireType::end_group)) {
                if (tag >> 3 != group) return bad_end(place, group);
                value = Cursor(before.here(), static_cast<std::size_t>(at - before.here()));
                in = inside;
                return true;
            }
            if (!inside.skip<true>(tag, level + 1)) return bad_skip(place);
        }
        return group == 0 || no_end(place.table, inside.here(), group);
    }

    // A message that is not decoded. A second occurrence of a singular one merges with the first: their bytes follow each
    // other.
    bool one_raw(const Place& place, Cursor& in, std::size_t row, std::size_t level) {
        Cursor value(in.here(), 0);
        if (!raw(place, in, level, value)) return false;
        if (place.op.marked) mark(place.table, place.op, row);
        if (place.op.column == nullptr) return true;
        std::uint8_t* slot = place.op.column->place(row);
        const Span before = load<Span>(slot);
        Span span{value.here(), value.left()};
        if (before.size > 0) {
            joined_.emplace_back(reinterpret_cast<const char*>(before.data), before.size);
            joined_.back().append(reinterpret_cast<const char*>(span.data), span.size);
            span = {reinterpret_cast<const std::uint8_t*>(joined_.back().data()), joined_.back().size()};
        }
        put(slot, span);
        return true;
    }

    // ---- errors

    DTF_APART bool fail(Fault fault, const Table& table, int field, std::uint32_t number, const std::uint8_t* at,
                        std::string expected, std::string found) {
        problem_.fault = fault;
        problem_.table = table.index;
        problem_.field = field;
        problem_.number = number;
        problem_.offset = static_cast<std::uint64_t>(at - record_);
        problem_.expected = std::move(expected);
        problem_.found = std::move(found);
        return false;
    }

    DTF_APART bool fail(const Place& place, std::string expected, std::string found, Fault fault = Fault::malformed) {
        return fail(fault, place.table, place.op.index, place.tag >> 3, place.at, std::move(expected), std::move(found));
    }

    DTF_APART bool bad_tag(const Table& table, const std::uint8_t* at, const std::uint8_t* end) {
        const bool zero = end > at && *(end - 1) < 0x80;
        return fail(Fault::malformed, table, -1, 0, at, "a tag with a field number from 1 to 536870911",
                    zero ? "a tag with another number, or of more than 5 bytes"
                         : "a tag that the message ends in, or of more than 5 bytes");
    }

    DTF_APART bool bad_skip(const Place& place) {
        return fail(place, "a field of wire type " + std::to_string(place.tag & 7),
                    "bytes that end within it, or that are malformed");
    }

    DTF_APART bool bad_end(const Place& place, std::uint32_t group) {
        return fail(place, group == 0 ? "a field" : "the end of group " + std::to_string(group),
                    "the end of group " + std::to_string(place.tag >> 3));
    }

    DTF_APART bool no_end(const Table& table, const std::uint8_t* at, std::uint32_t group) {
        return fail(Fault::malformed, table, -1, 0, at, "the end of group " + std::to_string(group),
                    "the end of the message");
    }

    DTF_APART bool bad_wire_type(const Place& place) {
        return fail(place, "a wire type from 0 to 5", "wire type " + std::to_string(place.tag & 7));
    }

    DTF_APART bool too_deep(const Place& place) {
        return fail(place, "messages nested at most " + std::to_string(max_depth) + " deep", "a deeper one");
    }

    DTF_APART bool bad_varint(const Place& place, Cursor before, std::size_t longest) {
        std::size_t size = 0;
        while (size < before.left() && before.here()[size] >= 0x80) ++size;
        if (size < longest && size == before.left()) {
            return fail(place, "a varint", "the end of the message within it");
        }
        return fail(place, "a varint of at most " + std::to_string(longest) + " bytes", "a longer one");
    }

    // One of the packed values is malformed.
    DTF_APART bool bad_packed_varint(const Place& place, Cursor values) {
        Cursor before = values;
        for (std::uint64_t value = 0; values.varint(value);) before = values;
        return bad_varint(place, before, varints::longest);
    }

    DTF_APART bool bad_delimited(const Place& place, Cursor before) {
        constexpr std::size_t longest = 5;  // varint of a length
        const Cursor from = before;
        std::uint64_t size = 0;
        if (!before.varint(size) || before.here() - from.here() > static_cast<std::ptrdiff_t>(longest)) {
            return bad_varint(place, from, longest);
        }
        return bad_size(place, size, before.left());
    }

    DTF_APART bool bad_size(const Place& place, std::uint64_t size, std::size_t left) {
        return fail(place, std::to_string(size) + " bytes", std::to_string(left) + " bytes until the end of the message");
    }

    DTF_APART bool bad_packed(const Place& place, std::size_t width, std::size_t size) {
        return fail(place, "packed values of " + std::to_string(width) + " bytes each",
                    std::to_string(size) + " bytes");
    }

    DTF_APART bool bad_text(const Place& place) {
        return fail(place, "UTF-8", "other bytes", Fault::utf8);
    }

    std::vector<MessageTable> specs_;
    std::deque<MessageColumn> columns_, hidden_;
    std::deque<MessageList> lists_;
    std::vector<MessageColumn*> texts_;  // columns of bytes
    std::vector<MessageList*> splits_;
    std::vector<Table> tables_;
    MessageList* root_ = nullptr;
    std::deque<std::string> joined_;  // bytes of merged messages
    MessageProblem problem_;
    std::uint64_t unknown_ = 0;
    std::size_t most_ = std::numeric_limits<std::size_t>::max();
    const std::uint8_t* record_ = nullptr;
    bool odd_ = false;  // the last message has unknown fields
};

}  // namespace dtf
