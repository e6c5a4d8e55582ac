

r (poisondetail