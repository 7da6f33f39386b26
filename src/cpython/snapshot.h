// What taking and resuming snapshots share; for the sources of this folder only.
#pragma once
#include "cpython/cpython.h"

// What an instruction does with the result of the frame that it led to.
typedef enum { kDropped, kPushed, kPushedAsMethod, kNextItem, kSentOn } result_kind;

result_kind result_of(const mg_instruction* instruction);
