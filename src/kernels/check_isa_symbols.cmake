# Fails when OBJECT defines a weak or unique symbol: such a function would be compiled with this
# object's instruction set and could be linked into code that every machine runs.
execute_process(COMMAND ${NM} -C ${OBJECT} OUTPUT_VARIABLE symbols RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${NM} failed on ${OBJECT}")
endif()
string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
if(shared)
  message(FATAL_ERROR "${OBJECT} leaks shared inline functions:\n${shared}")
endif()
