// What the program asks of compilers by `torch.compiler.set_stance`.
#pragma once

namespace capture {

// Whether it asks that nothing compiled runs (`"force_eager"`).
bool eager_is_forced();

void init_stance();

}  // namespace capture
