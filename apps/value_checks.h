// What holds for the values of all flags, whatever the flag.
#pragma once

namespace CLI {
class App;
}

namespace foresail {

// For every flag of every command, called once after they have been added: no value is empty, every
// number is one, and a flag without a value takes none. Ranges are the flags' own.
void check_all_values(CLI::App& app);

}  // namespace foresail
