"""Sentences of statements."""

OWN = "The ε of this statement covers this study alone, by its plan; its ledger counts other analyses separately."
ADAPTIVE = "All analyses in the ledger, including those chosen after seeing results of others: {words}."
ABSENT = "{name} took no part in this study and released nothing."
SILENT = "{name} is not in the result; it did not say that it released anything for this study."
ALONE = "The ledger covers this study alone: other studies of the same sites are not counted."
SECRET = "The sites asked in a round are drawn at random and must stay secret from the other sites and the network."
UNTRUSTED = "Nobody is trusted with records or with noise: each site's messages are private by themselves."
TRUSTED = (
    "The coordinator is trusted: it adds up what sites send and adds the noise. The promise is about what it "
    "publishes, against everybody else, other sites included."
)
