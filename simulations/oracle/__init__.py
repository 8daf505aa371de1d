"""The decision oracle: for each rule, a naive statement of which decision is right, held against every decision."""
