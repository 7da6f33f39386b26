// The identity of a graph across processes: the digest of a text that leaves out what does not matter.
#include <array>
#include <bit>
#include <cstdint>

#include "graph/graph.h"

namespace magneto::graph {
namespace {

using Digest = std::array<uint32_t, 5>;

void add_block(Digest& digest, const unsigned char* block) {
  std::array<uint32_t, 80> words;
  for (size_t i = 0; i < 16; ++i) {
    const unsigned char* at = block + 4 * i;
    words[i] = uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | uint32_t{at[3]};
  }
  for (size_t i = 16; i < 80; ++i) {
    words[i] = std::rotl(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
  }
  auto [a, b, c, d, e] = digest;
  for (size_t i = 0; i < 80; ++i) {
    uint32_t mixed = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                     : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                              : (b ^ c ^ d) + 0xca62c1d6;
    uint32_t next = std::rotl(a, 5) + mixed + e + words[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  digest[0] += a, digest[1] += b, digest[2] += c, digest[3] += d, digest[4] += e;
}

// SHA-1 (FIPS 180-4): known to everybody, and nobody attacks the graphs of a process with graphs of their own.
std::string sha1(std::string text) {
  uint64_t bits = 8 * static_cast<uint64_t>(text.size());
  text += '\x80';
  while (text.size() % 64 != 56) text += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
  Digest digest = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  for (size_t at = 0; at < text.size(); at += 64) {
    add_block(digest, reinterpret_cast<const unsigned char*>(text.data()) + at);
  }
  std::string hex;
  for (uint32_t word : digest) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

}  // namespace

std::string structural_hash(const Graph& graph) { return sha1(to_text(graph, Style::Structure)); }

}  // namespace magneto::graph
