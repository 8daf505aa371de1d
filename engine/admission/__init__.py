"""What requests and their bytes may hold of a server before and while they are answered."""

from .budget import BudgetCore, BudgetStatistics, LeaseCore
from .client_bytes import ClientAccounts, ClientBytes
from .shares import ModelShare

__all__ = ["BudgetCore", "BudgetStatistics", "ClientAccounts", "ClientBytes", "LeaseCore", "ModelShare"]
