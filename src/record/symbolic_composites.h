// Composites of torch that ask for plain sizes, for symbolic ones.
#pragma once
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace magneto::record {

// Each calls the operators that torch's own calls, if an argument is symbolic. False: none is, or there is something
// special about the arguments; nothing was done.
bool pad_sequence_symbolically(c10::Stack& stack);  // (sequences, batch_first, padding_value, padding_side)
bool kron_symbolically(c10::Stack& stack);          // (self, other)
// (self, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align_to_window)
bool stft_symbolically(c10::Stack& stack);

// Whether a network that torch unrolls, step by step, should be one operator, so that its length stays open. The
// arguments are (input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first).
bool stays_whole(c10::ArrayRef<c10::IValue> args);

}  // namespace magneto::record
