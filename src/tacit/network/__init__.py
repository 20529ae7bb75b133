"""A study between machines: the same study file and functions as `tacit simulate`, with FLARE between them.

| file          | who         | what                                                                                  |
|---------------|-------------|---------------------------------------------------------------------------------------|
| `agreement`   | both        | the study as everybody must know it: plan, public columns, and who takes part         |
| `station`     | site        | a site of one study, behind its own limits, ledger, store and audit log               |
| `coordinator` | coordinator | its view of sites elsewhere, of which it believes nothing, and the state of the study |
| `running`     | both        | what the commands do: `network init`, `serve`, `join`, `network withdraw`             |
| `commands`    | both        | the commands                                                                          |

How bytes move is `engines/nvflare.py`. docs/deploy.md is for those who run it.
"""
