"""Generation of tokens, step by step: what each step computes, whose memory is where, how tokens are drawn and become
text. Pure: no framework is needed here."""
