"""What kind of work an instruction is, and how many cycles of shared memory it takes."""

CLASSES = {
    "tensor": ("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "HGMMA", "QGMMA", "WARPGROUP"),
    "shared": ("LDS", "LDSM", "STS", "STSM", "ATOMS", "SHFL", "REDUX", "MOVM"),
    "global": (
        *("LD", "ST", "LDG", "STG", "LDGSTS", "LDL", "STL", "RED", "REDG", "ATOM", "ATOMG", "CCTL", "UBLKCP"),
        *("UTMALDG", "UTMASTG"),
    ),
    "special": ("MUFU", "I2F", "F2I", "F2F", "FRND", "I2I", "POPC", "FLO", "BREV", "DADD", "DMUL", "DFMA", "DSETP"),
    "branches": (
        *("BRA", "BRX", "JMP", "JMX", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "YIELD", "BMOV"),
        *("WARPSYNC", "ENDCOLLECTIVE", "NANOSLEEP", "KILL", "BPT"),
    ),
    "barriers": ("BAR", "DEPBAR", "LDGDEPBAR", "B2R", "MEMBAR", "ERRBAR", "SYNCS", "ARRIVES", "FENCE"),
    "float": (
        *("FADD", "FMUL", "FFMA", "FSETP", "FSEL", "FSET", "FMNMX", "FCHK", "FSWZADD", "F2FP", "I2FP"),
        *("HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSETP2", "HSET2"),
    ),
    "integer": (
        *("IMAD", "IADD3", "IADD", "IABS", "IMNMX", "ISETP", "IDP", "LEA", "LOP3", "LOP", "SHF", "SHL", "SHR"),
        *("SEL", "VIADD", "VIMNMX", "VIADDMNMX", "VABSDIFF", "PRMT", "MOV", "MOV32I", "SGXT", "BMSK", "PLOP3"),
        *("P2R", "R2P", "R2UR", "CS2R", "S2R", "S2UR", "LDC", "ULDC", "VOTE", "VOTEU", "MATCH"),
        *("UIADD3", "UIMAD", "UISETP", "ULEA", "ULOP3", "USHF", "USEL", "UMOV", "UPRMT", "USGXT", "UPLOP3"),
        *("UBMSK", "UPOPC", "UFLO", "UP2UR", "UR2UP", "UIMNMX", "UCGABAR_ARV", "UCGABAR_WAIT"),
    ),
}
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}
KINDS = (*CLASSES, "other")
SHARED_BYTES_PER_CYCLE = 128  # of a multiprocessor


def kind_of(opcode):
    return CLASS_OF.get(opcode.split(".")[0], "other")


def shared_cycles(opcode):
    """Without bank conflicts: bytes of a whole warp over the bytes that a cycle moves."""
    parts = opcode.split(".")
    if parts[0] in ("LDSM", "STSM"):
        return int(parts[-1]) if parts[-1] in ("2", "4") else 1
    if parts[0] in ("SHFL", "ATOMS"):
        return 1
    if parts[0] in ("LDS", "STS", "LDGSTS"):
        bits = next((int(part) for part in parts[1:] if part in ("64", "128")), 32)
        return bits * 4 // SHARED_BYTES_PER_CYCLE
    return 0
